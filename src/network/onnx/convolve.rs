//! Convolution and upsampling operators of the graph.

use super::graph::{Attribute, Graph, Value};

impl Graph {
    /// Keeps the first `height` rows and `width` columns of a map; `rows` is the index of the row
    /// axis, followed by the column axis.
    pub fn crop(&mut self, x: &Value, rows: usize, height: usize, width: usize) -> Value {
        if x.shape[rows..rows + 2] == [height, width] {
            return x.clone();
        }
        let starts = self.integers("starts", &[0, 0]);
        let ends = self.integers("ends", &[height as i64, width as i64]);
        let axes = self.integers("axes", &[rows as i64, rows as i64 + 1]);
        let mut shape = x.shape.clone();
        shape[rows..rows + 2].copy_from_slice(&[height, width]);
        self.node("Slice", &[x, &starts, &ends, &axes], &[], shape)
    }

    /// 2-D convolution of an NCHW map with a square kernel, `out × in × k × k`, and equal padding
    /// on all sides.
    pub fn conv(
        &mut self,
        x: &Value,
        weight: &Value,
        bias: Option<&Value>,
        stride: usize,
        padding: usize,
    ) -> Value {
        let kernel = weight.shape[2];
        assert_eq!(x.shape[1], weight.shape[1], "conv");
        let out = |n: usize| (n + 2 * padding - kernel) / stride + 1;
        let (rows, columns) = (out(x.shape[2]), out(x.shape[3]));
        let shape = vec![x.shape[0], weight.shape[0], rows, columns];
        self.count(&shape, weight.shape[1] * kernel * kernel);
        let geometry = Geometry::new(kernel, stride, padding);
        let inputs: Vec<&Value> = [x, weight].into_iter().chain(bias).collect();
        self.node("Conv", &inputs, &geometry.attributes(), shape)
    }

    /// 2-D convolution of an NHWC map with a kernel of `out × k × k × in`: an operator of ONNX
    /// Runtime's CUDA provider.
    pub fn conv_channels_last(
        &mut self,
        x: &Value,
        weight: &Value,
        bias: Option<&Value>,
        stride: usize,
        padding: usize,
    ) -> Value {
        let kernel = weight.shape[1];
        assert_eq!(x.shape[3], weight.shape[3], "conv_channels_last");
        let out = |n: usize| (n + 2 * padding - kernel) / stride + 1;
        let (rows, columns) = (out(x.shape[1]), out(x.shape[2]));
        let shape = vec![x.shape[0], rows, columns, weight.shape[0]];
        self.count(&shape, weight.shape[3] * kernel * kernel);
        let geometry = Geometry::new(kernel, stride, padding);
        let inputs: Vec<&Value> = [x, weight].into_iter().chain(bias).collect();
        self.contrib_node("NhwcConv", &inputs, &geometry.attributes(), shape)
    }

    /// Transposed 2-D convolution of an NCHW map with stride equal to the kernel side, so that
    /// output patches do not overlap.
    pub fn conv_transpose(&mut self, x: &Value, weight: &Value, bias: &Value) -> Value {
        let kernel = weight.shape[2];
        assert_eq!(x.shape[1], weight.shape[0], "conv_transpose");
        let (rows, columns) = (x.shape[2] * kernel, x.shape[3] * kernel);
        let shape = vec![x.shape[0], weight.shape[1], rows, columns];
        // Without overlap, each output is one sum over the input channels.
        self.count(&shape, x.shape[1]);
        let geometry = Geometry::new(kernel, kernel, 0);
        let inputs = [x, weight, bias];
        self.node("ConvTranspose", &inputs, &geometry.attributes(), shape)
    }

    /// Bilinear upsampling of an NCHW map to `rows × columns` with aligned corners: `src =
    /// i·(in−1)/(out−1)`.
    pub fn upsample(&mut self, x: &Value, rows: usize, columns: usize) -> Value {
        let shape = vec![x.shape[0], x.shape[1], rows, columns];
        let sizes: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let sizes = self.integers("sizes", &sizes);
        let absent = Value::absent(x.number());
        let attributes = [
            ("mode", Attribute::Text("linear")),
            (
                "coordinate_transformation_mode",
                Attribute::Text("align_corners"),
            ),
        ];
        self.node("Resize", &[x, &absent, &absent, &sizes], &attributes, shape)
    }
}

struct Geometry {
    kernel: [i64; 2],
    strides: [i64; 2],
    pads: [i64; 4],
}

impl Geometry {
    fn new(kernel: usize, stride: usize, padding: usize) -> Self {
        Self {
            kernel: [kernel as i64; 2],
            strides: [stride as i64; 2],
            pads: [padding as i64; 4],
        }
    }

    fn attributes(&self) -> [(&'static str, Attribute<'_>); 3] {
        [
            ("kernel_shape", Attribute::Ints(&self.kernel)),
            ("strides", Attribute::Ints(&self.strides)),
            ("pads", Attribute::Ints(&self.pads)),
        ]
    }
}
