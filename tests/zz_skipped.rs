//! Runs last of all test programs, and lists the tests that this run skipped.

fn main() {
    let all = [
        (cfg!(feature = "bags"), "bags", "the tests of bags"),
        (cfg!(feature = "dds"), "dds", "the tests of DDS"),
        (cfg!(feature = "view"), "view", "the tests of the live page"),
        (cfg!(feature = "cuda"), "cuda", "the GPU's tests"),
        (
            cfg!(feature = "onnxruntime"),
            "onnxruntime",
            "ONNX Runtime's tests",
        ),
        (cfg!(feature = "tensorrt"), "tensorrt", "TensorRT's tests"),
    ];
    let missing: Vec<(&str, &str)> = all
        .iter()
        .filter(|(built, ..)| !built)
        .map(|(_, feature, tests)| (*feature, *tests))
        .collect();
    testkit::skip::summary(&missing);
}
