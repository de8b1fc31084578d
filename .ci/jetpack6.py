#!/usr/bin/env python3
"""Compiles every kernels/**/*.cu for JetPack 6 (Orin, sm_87), whose driver loads no code of CUDA 13.

    jetpack6.py FOLDER

PyPI has no nvcc of CUDA 12.6, but its run-time compiler. FOLDER is where pip put
    nvidia-cuda-nvrtc-cu12==12.6.85 nvidia-cuda-cccl-cu12==12.6.77 nvidia-cuda-runtime-cu12==12.6.77
(pip install --target). Fails on any error or warning.
"""

import ctypes
import pathlib
import sys

KERNELS = pathlib.Path(__file__).resolve().parent.parent / "kernels"


def check(library, code, doing):
    if code != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"NVRTC failed while {doing}: {library.nvrtcGetErrorString(code).decode()}")


def compile_one(library, source, includes):
    """The compiler's log and the size of the machine code, 0 if there is none."""
    options = ["--gpu-architecture=sm_87", "--std=c++17", "--fmad=false", "--generate-line-info"]
    # Of <math.h>, which nvcc includes by itself and the run-time compiler has not.
    options += ["--define-macro=INFINITY=__int_as_float(0x7f800000)", "--define-macro=NAN=__int_as_float(0x7fffffff)"]
    options += [f"--include-path={folder}" for folder in [source.parent, *includes]]
    program = ctypes.c_void_p()
    text, name = source.read_bytes(), source.name.encode()
    made = library.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
    check(library, made, "taking the source")
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    code = library.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    check(library, library.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "asking for the log")
    log = ctypes.create_string_buffer(size.value)
    check(library, library.nvrtcGetProgramLog(program, log), "asking for the log")
    if code == 0:
        check(library, library.nvrtcGetCUBINSize(program, ctypes.byref(size)), "asking for the code")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode().strip(), size.value if code == 0 else 0


def main():
    packages = pathlib.Path(sys.argv[1]) / "nvidia"
    library = ctypes.CDLL(str(packages / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"))
    includes = [packages / name / "include" for name in ("cuda_cccl", "cuda_runtime")]
    major, minor = ctypes.c_int(), ctypes.c_int()
    check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "asking the version")
    failures = 0
    for source in sorted(KERNELS.rglob("*.cu")):
        log, size = compile_one(library, source, includes)
        if log or not size:
            failures += 1
            print(f"error: {source.name}\n{log}", file=sys.stderr)
        else:
            print(f"{source.name}: {size} bytes for sm_87")
    print(f"CUDA {major.value}.{minor.value}: {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
