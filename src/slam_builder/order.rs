//! The order in which `auto` tries the backends of the network.

/// A way to run the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// TensorRT with an engine that exists.
    Engine,
    /// The program's own kernels.
    Native,
    /// TensorRT with an engine that is built first, which takes minutes.
    BuiltEngine,
    /// ONNX Runtime on the GPU.
    Onnxruntime,
    Cpu,
}

/// What the program includes and may do.
#[derive(Debug, Clone, Copy)]
pub struct Included {
    pub tensorrt: bool,
    pub native: bool,
    pub onnxruntime: bool,
    /// Whether engines may be built.
    pub may_build: bool,
}

/// What `bench` measured on this GPU: milliseconds of an image and a pair.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    pub tensorrt: Option<f64>,
    pub native: Option<f64>,
}

impl Measured {
    /// With TensorRT and with the native backend, if both were measured.
    fn both(&self) -> Option<(f64, f64)> {
        Some((self.tensorrt?, self.native?))
    }
}

/// The ways to try, one after the other. The native backend comes before TensorRT where it was measured to be faster;
/// an engine is only built if it cannot run.
pub fn order(included: Included, measured: Measured) -> Vec<Way> {
    let faster = measured
        .both()
        .is_some_and(|(tensorrt, native)| native < tensorrt);
    let mut first = [Way::Engine, Way::Native];
    if faster {
        first.reverse();
    }
    let rest = [Way::BuiltEngine, Way::Onnxruntime, Way::Cpu];
    let mut ways: Vec<Way> = first.into_iter().chain(rest).collect();
    ways.retain(|way| match way {
        Way::Engine => included.tensorrt,
        Way::Native => included.native,
        Way::BuiltEngine => included.tensorrt && included.may_build,
        Way::Onnxruntime => included.onnxruntime,
        Way::Cpu => true,
    });
    ways
}

/// Why a way is taken before another one that works as well.
pub fn reason(way: Way, measured: Measured) -> String {
    match (way, measured.both()) {
        (Way::Engine | Way::Native, Some((tensorrt, native))) => format!(
            "for an image and a pair, `mast3r-slam bench` measured {native:.2} ms with native and {tensorrt:.2} ms \
             with TensorRT on this GPU"
        ),
        (Way::Engine, None) => {
            "an engine fits; `mast3r-slam bench --only network` with --backend tensorrt and with \
                                --backend native measures which is faster on this GPU"
                .into()
        }
        (Way::Native, None) => "it is the fastest that needs nothing but the driver".into(),
        (Way::BuiltEngine, _) => "its engine was built for this GPU".into(),
        (Way::Onnxruntime, _) => "it is the fastest that works on this GPU".into(),
        (Way::Cpu, _) => "no GPU can run it".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Included = Included {
        tensorrt: true,
        native: true,
        onnxruntime: true,
        may_build: true,
    };

    #[test]
    fn tensorrt_comes_first_unless_native_was_measured_to_be_faster() {
        let usual = [
            Way::Engine,
            Way::Native,
            Way::BuiltEngine,
            Way::Onnxruntime,
            Way::Cpu,
        ];
        let mut native_first = usual;
        native_first.swap(0, 1);
        for (tensorrt, native, expected) in [
            (None, None, usual),
            // One alone decides nothing.
            (Some(9.0), None, usual),
            (None, Some(1.0), usual),
            (Some(3.0), Some(4.0), usual),
            (Some(3.0), Some(3.0), usual),
            (Some(4.0), Some(3.5), native_first),
        ] {
            let measured = Measured { tensorrt, native };
            assert_eq!(order(ALL, measured), expected, "{measured:?}");
        }
    }

    #[test]
    fn what_the_program_does_not_include_is_not_tried() {
        let none = Included {
            tensorrt: false,
            native: false,
            onnxruntime: false,
            may_build: true,
        };
        assert_eq!(order(none, Measured::default()), [Way::Cpu]);
        let native = Included {
            native: true,
            ..none
        };
        assert_eq!(order(native, Measured::default()), [Way::Native, Way::Cpu]);
        let no_build = Included {
            may_build: false,
            ..ALL
        };
        assert!(!order(no_build, Measured::default()).contains(&Way::BuiltEngine));
    }

    #[test]
    fn the_reason_says_what_was_measured() {
        let measured = Measured {
            tensorrt: Some(3.0),
            native: Some(4.5),
        };
        let said = reason(Way::Engine, measured);
        assert!(
            said.contains("3.00 ms") && said.contains("4.50 ms"),
            "{said}"
        );
        assert!(reason(Way::Engine, Measured::default()).contains("fits"));
        assert!(reason(Way::Native, Measured::default()).contains("driver"));
    }
}
