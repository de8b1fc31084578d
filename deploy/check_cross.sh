#!/usr/bin/env bash
# Runs the programs of deploy/cross.sh on Linux x86-64, Windows' under Wine and aarch64's under QEMU, and compares what
# they do with the native program:
#     deploy/check_cross.sh [--install | --whole]
# --install installs Wine and QEMU on Debian (by sudo, unless root runs it) and does nothing else. --whole has Wine track
# the whole demo too, which takes a minute. The native program is $NATIVE, by default
# $CARGO_TARGET_DIR/release/mast3r-slam; $ARM_SIZE [96] is the width of the ten images under QEMU, where a frame of 256
# pixels takes a minute or two. Neither Wine nor QEMU is Windows or a Jetson: a driver, a GPU, a console or a file system
# of those was not seen by this.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
windows=x86_64-pc-windows-gnu arm=aarch64-unknown-linux-gnu
frames=10 size=256 arm_size=${ARM_SIZE:-96} nudges="1 2 3"

case "${1-}" in
"" | --install | --whole) ;;
*)
    echo "$0: expected --install or --whole, found $1" >&2
    exit 2
    ;;
esac

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

. deploy/wine.sh
if [ "${1-}" = --install ]; then
    missing=()
    [ -x "$wine" ] || missing+=(wine64)
    command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
    [ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] || missing+=(libc6-arm64-cross)
    if [ ${#missing[@]} -gt 0 ]; then
        as_root apt-get -o Acquire::Retries=3 update -q
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get -o Acquire::Retries=3 install -q -y --no-install-recommends "${missing[@]}"
    fi
    exit 0
fi

native=${NATIVE:-$target/release/mast3r-slam}
for program in "$native" "$target/$windows/release/mast3r-slam.exe" "$target/$arm/release/mast3r-slam"; do
    if ! [ -x "$program" ]; then
        echo "$0: found no $program; build it: cargo build --release, and deploy/cross.sh" >&2
        exit 1
    fi
done

work=$target/cross-check
rm -rf "$work"
mkdir -p "$work/windows"
export MAST3R_SLAM_SHARE=$PWD RUST_LOG=warn
use_wine "$work/windows"
cp "$target/$windows/release/mast3r-slam.exe" "$work/windows/"
# Wine's background processes of this prefix end with the script.
trap '"${wine%wine64}wineserver64" -k 2>/dev/null || "${wine%wine64}wineserver" -k 2>/dev/null || true' EXIT

on_native() { "$native" "$@"; }
on_windows() { "$wine" "$work/windows/mast3r-slam.exe" "$@" </dev/null | tr -d '\r'; }
on_arm() { qemu-aarch64 -L /usr/aarch64-linux-gnu "$target/$arm/release/mast3r-slam" "$@"; }

fail() {
    echo "$0: $*" >&2
    exit 1
}

echo "-- the programs start"
for platform in native windows arm; do
    version=$(on_$platform --version | head -1)
    echo "$platform: $version"
    [[ $version == "mast3r-slam "* ]] || fail "$platform: expected mast3r-slam and its version, found '$version'"
done
# Wine puts its own libraries beside Windows'; real Windows has none of the compiler's.
libraries=$(x86_64-w64-mingw32-objdump -p "$work/windows/mast3r-slam.exe" |
    sed -n 's/.*DLL Name: //p' | tr 'A-Z\n' 'a-z ')
echo "windows: loads $libraries"
for library in libgcc libstdc++ libwinpthread; do
    [[ $libraries != *$library* ]] || fail "windows: needs the compiler's $library, which no Windows has"
done

echo "-- $frames frames of the demo, $size pixels wide, on aarch64 $arm_size"
track() { # PLATFORM WIDTH FOLDER OPTIONS...
    local began=$SECONDS
    on_"$1" run assets/room_loop --config mini --size "$2" --end $frames --threads single --device cpu \
        --out "$3" --save-map "$3.map" --no-progress "${@:4}" >"$work/$1.log"
    echo "$1: $frames frames, $2 pixels wide, took $((SECONDS - began)) s"
}
# Vectors of other widths add the network's products in another order. What that may change is what the last bit of
# each weight changes.
model=engines/mast3r-mini/model.safetensors
for seed in $nudges; do
    python3 deploy/nudge.py $model "$work/nudged$seed.safetensors" "$seed"
done
compare() { # WIDTH EXPECTED FOUND
    local seed nudged=()
    for seed in $nudges; do
        track native "$1" "$work/nudged$seed-$1" --weights "$work/nudged$seed.safetensors" \
            --codebook ${model%/*}/codebook.safetensors
        nudged+=("$work/nudged$seed-$1/trajectory.txt")
    done
    python3 deploy/compare.py "$2/trajectory.txt" "$3/trajectory.txt" "${nudged[@]}"
}
track native $size "$work/native"
# With the path of Windows: a drive letter and back-slashes; and a name that is not ASCII.
track windows $size "Z:${work//\//\\}\\fenêtre"
compare $size "$work/native" "$work/fenêtre"
track native "$arm_size" "$work/native_small"
track arm "$arm_size" "$work/arm"
compare "$arm_size" "$work/native_small" "$work/arm"
for folder in fenêtre arm; do
    for file in keyframes.txt frames.csv cloud.ply report.html; do
        [ -s "$work/$folder/$file" ] || fail "$folder: the run left no $file"
    done
done

echo "-- each platform reads the maps of the others"
cp "$work/fenêtre.map" "$work/windows.map"
for map in native windows arm; do
    expected=$(on_native map info "$work/$map.map")
    for platform in windows arm; do
        found=$(cd "$work" && on_$platform map info "$work/$map.map")
        [ "$found" = "$expected" ] ||
            fail "$platform: 'map info $map.map' differs from the native program's:
$expected
$found"
    done
    echo "$map.map: $(wc -c <"$work/$map.map") bytes, read by all"
done

echo "-- Windows goes on in a map that Linux keeps, and Linux in one of Windows"
for pair in native:windows windows:native; do
    first=${pair%:*} second=${pair#*:}
    on_$first run assets/room_loop --config mini --size $size --end 4 --threads single --device cpu \
        --out "$work/begun_$first" --map "$work/kept_$first.map" --no-progress >"$work/begun_$first.log"
    on_$second run assets/room_loop --config mini --size $size --start 4 --end 8 --threads single --device cpu \
        --out "$work/gone_on_$second" --map "$work/kept_$first.map" --no-progress >"$work/gone_on_$second.log"
    tail -1 "$work/gone_on_$second/trajectory.txt"
    [ "$(grep -vc '^#' "$work/gone_on_$second/trajectory.txt")" = 4 ] ||
        fail "$second: expected 4 frames in the map of $first"
    [ -z "$(find "$work" -name '*-lock')" ] || fail "the lock of a map was left"
done

if [ "${1-}" = --whole ]; then
    echo "-- the whole demo under Wine"
    on_windows demo --out "$work/demo"
fi
echo "-- done"
