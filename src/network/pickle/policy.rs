//! The names a pickle may refer to, and the functions it may call.

/// Whether a file may refer to `module.name`. Everything is inert here, so this is not a sandbox:
/// it warns the user that the file would run code in Python.
pub(super) fn may_be_named(module: &str, name: &str) -> bool {
    let package = module.split('.').next().unwrap_or_default();
    // A dotted name could reach another module through a harmless one (protocol 4).
    if name.contains('.') {
        return false;
    }
    match package {
        "builtins" | "__builtin__" => matches!(
            name,
            "set"
                | "frozenset"
                | "list"
                | "dict"
                | "tuple"
                | "int"
                | "float"
                | "complex"
                | "bool"
                | "str"
                | "bytes"
                | "bytearray"
                | "slice"
                | "range"
                | "object"
        ),
        "os" | "posix" | "posixpath" | "nt" | "ntpath" | "subprocess" | "sys" | "shutil"
        | "socket" | "importlib" | "imp" | "runpy" | "pty" | "pdb" | "bdb" | "ctypes" | "cffi"
        | "pickle" | "_pickle" | "cPickle" | "dill" | "cloudpickle" | "joblib" | "marshal"
        | "code" | "codeop" | "operator" | "_operator" | "functools" | "_functools" | "types"
        | "inspect" | "threading" | "_thread" | "multiprocessing" | "asyncio" | "signal"
        | "webbrowser" | "urllib" | "http" | "ftplib" | "requests" | "io" | "_io" | "tempfile"
        | "timeit" | "profile" | "cProfile" | "trace" | "pip" | "site" | "venv" | "ssl"
        | "pkgutil" | "zipimport" | "gc" | "atexit" | "linecache" | "platform" | "commands" => {
            false
        }
        "_codecs" | "codecs" => module == "_codecs" && name == "encode",
        // `_reconstructor` instantiates any class and then sets its state, like NEWOBJ and BUILD.
        "copyreg" | "copy_reg" => name == "_reconstructor",
        "torch" => !matches!(
            module,
            "torch.hub" | "torch.jit" | "torch.package" | "torch.ops" | "torch.utils.cpp_extension"
        ),
        "numpy" => !(module.starts_with("numpy.testing") || module.starts_with("numpy.distutils")),
        _ => true,
    }
}

/// Functions that pickles of PyTorch, NumPy and argparse call and whose result can be represented.
pub(super) fn may_be_called(module: &str, name: &str) -> bool {
    matches!(
        (module, name),
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_parameter")
            | ("torch", "device" | "Size")
            | ("collections", "OrderedDict" | "defaultdict")
            | (
                "numpy.core.multiarray" | "numpy._core.multiarray",
                "_reconstruct" | "scalar"
            )
            | ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer")
            | ("numpy", "dtype" | "ndarray")
            | ("_codecs", "encode")
            | ("argparse", "Namespace")
            | ("copyreg" | "copy_reg", "_reconstructor")
            | (
                "builtins" | "__builtin__",
                "set" | "frozenset" | "bytearray" | "bytes" | "complex" | "slice" | "range"
            )
            | (
                "pathlib" | "pathlib._local",
                "Path"
                    | "PosixPath"
                    | "WindowsPath"
                    | "PurePath"
                    | "PurePosixPath"
                    | "PureWindowsPath"
            )
    )
}
