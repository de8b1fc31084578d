#!/usr/bin/env bash
# Runs test programs built for Windows under Wine, or for aarch64 under QEMU:
#     deploy/test_cross.sh windows|aarch64 CARGO_TEST_ARGUMENTS...
# For example `deploy/test_cross.sh windows --lib files:: map::store::lock` or `… --test eval`. Slow: QEMU takes ten to
# a hundred times as long as a machine of its own. FEATURES are empty by default, for tests on the CPU.
# deploy/check_cross.sh --install installs Wine and QEMU.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "${CARGO_TARGET_DIR:-target}/cross-tests"
work=$(cd "${CARGO_TARGET_DIR:-target}/cross-tests" && pwd)
platform=${1-}
case $platform in
windows)
    . deploy/wine.sh
    use_wine "$work"
    # Beside the programs too: some tests start them without a search path.
    built=${CARGO_TARGET_DIR:-target}/x86_64-pc-windows-gnu/release
    mkdir -p "$built/deps"
    cp "$work/bcryptprimitives.dll" "$built/"
    cp "$work/bcryptprimitives.dll" "$built/deps/"
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=$wine
    export WINEPATH=$work
    ;;
aarch64) export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" ;;
*)
    echo "$0: expected windows or aarch64, found '$platform'" >&2
    exit 2
    ;;
esac
FEATURES=${FEATURES-} CROSS_COMMAND=test exec deploy/cross.sh "$platform" -- "${@:2}"
