//! What MASt3R is: checkpoint reading, the description of the network, ONNX emission.
