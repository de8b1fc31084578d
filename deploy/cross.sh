#!/usr/bin/env bash
# Builds the release programs for Windows and for aarch64 Linux (Jetson, ARM servers) on Debian:
#     deploy/cross.sh [--install] [windows|aarch64 ...] [-- CARGO_ARGUMENTS]
# --install also installs Debian's cross compilers (by sudo, unless root runs it) and the Rust targets. Without names it
# builds both.
# FEATURES are by default those of the GPU, with TensorRT-RTX for Windows and JetPack's TensorRT for aarch64: they need
# nvcc and libclang (CONTRIBUTING.md); with FEATURES= the program runs on the CPU alone. The libraries of CUDA, TensorRT
# and ONNX Runtime are loaded at run time.
# CARGO_ARGUMENTS go to `cargo build --release`; CROSS_COMMAND=check only type-checks; deploy/test_cross.sh sets it to
# test.
# The programs are $CARGO_TARGET_DIR/<target>/release/mast3r-slam[.exe].
set -euo pipefail
cd "$(dirname "$0")/.."

# The linkers' settings hold for this script only; nothing is written to the user's cargo configuration.
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc
export CC_x86_64_pc_windows_gnu=x86_64-w64-mingw32-gcc CXX_x86_64_pc_windows_gnu=x86_64-w64-mingw32-g++
export AR_x86_64_pc_windows_gnu=x86_64-w64-mingw32-ar
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++
export AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

install=0 targets=()
while [ $# -gt 0 ]; do
    case $1 in
    --install) install=1 ;;
    windows) targets+=(x86_64-pc-windows-gnu) ;;
    aarch64) targets+=(aarch64-unknown-linux-gnu) ;;
    --)
        shift
        break
        ;;
    *)
        echo "$0: expected --install, windows, aarch64 or --, found $1" >&2
        exit 2
        ;;
    esac
    shift
done
[ ${#targets[@]} -gt 0 ] || targets=(x86_64-pc-windows-gnu aarch64-unknown-linux-gnu)

packages() {
    case $1 in
    x86_64-pc-windows-gnu) echo gcc-mingw-w64-x86-64 g++-mingw-w64-x86-64 ;;
    aarch64-unknown-linux-gnu) echo gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross ;;
    esac
}

if [ $install = 1 ]; then
    missing=()
    for target in "${targets[@]}"; do
        for package in $(packages "$target"); do
            dpkg-query --show "$package" >/dev/null 2>&1 || missing+=("$package")
        done
    done
    if [ ${#missing[@]} -gt 0 ]; then
        as_root apt-get -o Acquire::Retries=3 update -q
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get -o Acquire::Retries=3 install -q -y --no-install-recommends "${missing[@]}"
    fi
    rustup target add "${targets[@]}"
fi

# Where a cross compiler finds the headers of C and C++, as options for libclang, which reads TensorRT's. libclang has
# the compiler's own headers itself.
headers() { # COMPILER
    "$1" -E -x c++ -v /dev/null 2>&1 | sed -n '/^#include <...>/,/^End of search/s/^ //p' |
        sed -E '\#/gcc(-cross)?/[^/]*/[^/]*/include(-fixed)?$#d; s/^/-isystem /' | tr '\n' ' '
}

for target in "${targets[@]}"; do
    compiler=CC_${target//-/_}
    if ! command -v "${!compiler}" >/dev/null; then
        echo "$0: found no ${!compiler}; install it: apt-get install $(packages "$target")" >&2
        exit 1
    fi
    if ! [ -d "$(rustc --print target-libdir --target "$target")" ]; then
        echo "$0: Rust has no library for $target; add it: rustup target add $target" >&2
        exit 1
    fi
    cxx=CXX_${target//-/_}
    tensorrt=tensorrt-enterprise
    if [[ $target == *windows* ]]; then
        tensorrt=tensorrt
        # The program needs no libraries of the compiler beside it. Rust asks the linker for shared ones, also of
        # libstdc++, and it takes a static one only from a folder without a shared one.
        libraries=$(mkdir -p "${CARGO_TARGET_DIR:-target}/static" && cd "${CARGO_TARGET_DIR:-target}/static" && pwd)
        ln -sf "$("${!cxx}" -print-file-name=libstdc++.a)" "$libraries"
        CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS="-C target-feature=+crt-static -C link-arg=-static"
        CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS+=" -C link-arg=-L$libraries"
        export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS
    fi
    BINDGEN_EXTRA_CLANG_ARGS=$(headers "${!cxx}")
    export BINDGEN_EXTRA_CLANG_ARGS
    features=${FEATURES-cuda,onnxruntime,$tensorrt}
    case ${CROSS_COMMAND:-build} in
    test) cargo test --locked --release --target "$target" --features "$features" "$@" ;;
    *)
        cargo "${CROSS_COMMAND:-build}" --locked --release --target "$target" --bin mast3r-slam \
            --features "$features" "$@"
        ;;
    esac
done
