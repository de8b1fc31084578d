#!/usr/bin/env bash
# Makes the packages that users install, in $CARGO_TARGET_DIR/packages:
#     deploy/release.sh [--no-build] [amd64] [arm64] [ros] [windows]
# Debian packages for x86-64 and 64-bit ARM, and a zip archive for Windows; without names, all of them. Each has the
# program, the bundled model, the demo's images, configurations, launch files, man pages and completions of shells; the
# Debian packages also have the service. ros is ros-jazzy-mast3r-slam, which lets `ros2 launch` find that program.
# FEATURES (default: those of the GPU) are added to the build.
# --no-build packs the programs that are there. Needs dpkg-deb, Python 3 and, except for amd64, the compilers of
# deploy/cross.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "${CARGO_TARGET_DIR:-target}"
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
out=$target/packages
# A limit on what users download beside the model.
max_bytes=45000000
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# `--version` names it, unless --no-build packs a program that was built without it.
export MAST3R_SLAM_COMMIT=${MAST3R_SLAM_COMMIT:-$(git rev-parse --short=12 HEAD)}
# Files have the commit's time, so that packages of one commit are the same.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

build=1 kinds=()
for argument in "$@"; do
    case $argument in
    --no-build) build=0 ;;
    amd64 | arm64 | ros | windows) kinds+=("$argument") ;;
    *)
        echo "$0: expected --no-build, amd64, arm64, ros or windows, found $argument" >&2
        exit 2
        ;;
    esac
done
[ ${#kinds[@]} -gt 0 ] || kinds=(amd64 arm64 ros windows)

fail() {
    echo "$0: $*" >&2
    exit 1
}

features=${FEATURES-cuda,onnxruntime,tensorrt}
build_program() {
    case $1 in
    amd64) cargo build --locked --release --bin mast3r-slam ${features:+--features "$features"} ;;
    arm64) deploy/cross.sh aarch64 ;;
    # Functions that nothing uses are left out: its linker, unlike the others, keeps them, 13 MB.
    windows) CARGO_PROFILE_RELEASE_LTO=thin deploy/cross.sh windows ;;
    esac
}

program_of() {
    case $1 in
    amd64) echo "$target/release/mast3r-slam" ;;
    arm64) echo "$target/aarch64-unknown-linux-gnu/release/mast3r-slam" ;;
    windows) echo "$target/x86_64-pc-windows-gnu/release/mast3r-slam.exe" ;;
    esac
}

strip_program() { # KIND FROM TO
    local strip=strip
    case $1 in
    arm64) strip=aarch64-linux-gnu-strip ;;
    windows) strip=x86_64-w64-mingw32-strip ;;
    esac
    "$strip" -o "$3" "$2"
    local bytes
    bytes=$(stat -c %s "$3")
    [ "$bytes" -lt $max_bytes ] || fail "$1: expected a program below $max_bytes bytes, found $bytes"
    echo "$1: the program has $bytes bytes"
}

# What every package has below share/mast3r_slam: only files that git knows.
share() { # FOLDER
    mkdir -p "$1"
    git ls-files -z engines/mast3r-mini assets config launch | xargs -0 cp --parents -t "$1"
}

manual() { # FOLDER, made by a program that runs here
    if ! [ -x "$target/release/mast3r-slam" ]; then build_program amd64; fi
    rm -rf "$1"
    "$target/release/mast3r-slam" manual "$1"
}

debian() { # amd64 | arm64
    local root=$work/$1 doc=$work/$1/usr/share/doc/mast3r-slam libc
    install -d "$root/DEBIAN" "$root/usr/bin" "$doc" "$root/usr/share/man/man1" \
        "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
        "$root/usr/share/fish/vendor_completions.d"
    strip_program "$1" "$(program_of "$1")" "$root/usr/bin/mast3r-slam"
    share "$root/usr/share/mast3r_slam"
    install -d "$root/usr/lib/systemd/system" "$root/etc/mast3r-slam" "$doc/examples"
    cp deploy/systemd/*.service "$root/usr/lib/systemd/system"
    cp deploy/systemd/parameters.yaml deploy/systemd/environment "$root/etc/mast3r-slam"
    cp deploy/quadlet/mast3r-slam.container "$doc/examples"
    cp README.md CHANGELOG.md docs/install.md docs/jetson.md docs/service.md "$doc"
    cat LICENSE-MIT LICENSE-APACHE >"$doc/copyright"
    gzip -9n "$doc/CHANGELOG.md"
    cp "$work"/manual/man1/*.1 "$root/usr/share/man/man1"
    gzip -9n "$root"/usr/share/man/man1/*.1
    cp "$work/manual/completions/mast3r-slam.bash" "$root/usr/share/bash-completion/completions/mast3r-slam"
    cp "$work/manual/completions/_mast3r-slam" "$root/usr/share/zsh/vendor-completions"
    cp "$work/manual/completions/mast3r-slam.fish" "$root/usr/share/fish/vendor_completions.d"
    # The oldest C library that has all functions in use.
    libc=$(objdump -T "$root/usr/bin/mast3r-slam" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
    [ -n "$libc" ] || fail "$1: objdump named no version of the C library"
    # TensorRT's interface is C++.
    local stdcxx=
    ! objdump -p "$root/usr/bin/mast3r-slam" | grep -q 'NEEDED *libstdc++' || stdcxx=", libstdc++6"
    cat >"$root/DEBIAN/control" <<END
Package: mast3r-slam
Version: $version
Architecture: $1
Maintainer: $(sed -n 's/.*<maintainer email="\(.*\)">\(.*\)<.*/\2 <\1>/p' package.xml)
Section: science
Priority: optional
Installed-Size: $(du -ks --apparent-size "$root/usr" | cut -f1)
Depends: libc6 (>= ${libc#GLIBC_}), libgcc-s1$stdcxx
Recommends: ca-certificates, ffmpeg
Description: real-time monocular dense SLAM with MASt3R
 One camera's images go in; its trajectory in metres, keyframes and a dense
 coloured point cloud come out. With a ROS 2 node and a small bundled network.
END
    printf '%s\n' /etc/mast3r-slam/parameters.yaml /etc/mast3r-slam/environment >"$root/DEBIAN/conffiles"
    find "$root" -type d -exec chmod 755 {} +
    find "$root" -type f -exec chmod 644 {} +
    chmod 755 "$root/usr/bin/mast3r-slam"
    # The service is neither enabled nor started: it needs a camera. It is stopped before its program goes.
    cat >"$root/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
END
    cat >"$root/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ] && [ "$1" = remove ]; then
    systemctl disable --now mast3r-slam.service mast3r-slam-engines.service
fi
END
    cp "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"
    chmod 755 "$root"/DEBIAN/{postinst,prerm,postrm}
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb --root-owner-group --build "$root" "$out/mast3r-slam_${version}_$1.deb" >/dev/null
}

# What `ros2 launch` and `ros2 run` look for; the program is that of the package mast3r-slam.
ros() {
    local name=ros-jazzy-mast3r-slam root=$work/ros
    local prefix=$root/opt/ros/jazzy
    install -d "$root/DEBIAN" "$prefix/share/mast3r_slam" "$prefix/lib/mast3r_slam" \
        "$prefix/share/ament_index/resource_index/packages" "$root/usr/share/doc/$name"
    touch "$prefix/share/ament_index/resource_index/packages/mast3r_slam"
    git ls-files -z package.xml launch config | xargs -0 cp --parents -t "$prefix/share/mast3r_slam"
    ln -s /usr/bin/mast3r-slam "$prefix/lib/mast3r_slam/mast3r-slam"
    cat LICENSE-MIT LICENSE-APACHE >"$root/usr/share/doc/$name/copyright"
    cat >"$root/DEBIAN/control" <<END
Package: $name
Version: $version
Architecture: all
Maintainer: $(sed -n 's/.*<maintainer email="\(.*\)">\(.*\)<.*/\2 <\1>/p' package.xml)
Section: science
Priority: optional
Installed-Size: $(du -ks --apparent-size "$root/opt" | cut -f1)
Depends: mast3r-slam (= $version), ros-jazzy-ament-index-python, ros-jazzy-launch-ros, ros-jazzy-ros2launch,
 python3-yaml
Suggests: ros-jazzy-nav2-bringup, ros-jazzy-ros2bag
Description: real-time monocular dense SLAM with MASt3R: launch files for ROS 2 Jazzy
 The program is in the package mast3r-slam and speaks DDS itself.
END
    find "$root" -type d -exec chmod 755 {} +
    find "$root" -type f -exec chmod 644 {} +
    (cd "$root" && find opt usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb --root-owner-group --build "$root" "$out/${name}_${version}_all.deb" >/dev/null
}

windows() {
    local name=mast3r-slam-$version-x86_64-windows
    local root=$work/windows/$name
    mkdir -p "$root/bin"
    strip_program windows "$(program_of windows)" "$root/bin/mast3r-slam.exe"
    share "$root/share/mast3r_slam"
    cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE docs/windows.md "$root"
    cp "$work/manual/completions/_mast3r-slam.ps1" "$root"
    rm -f "$out/$name.zip"
    python3 - "$root" "$out/$name.zip" <<'END'
import os, pathlib, sys, time, zipfile
root, archive = pathlib.Path(sys.argv[1]), sys.argv[2]
when = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        entry = zipfile.ZipInfo(str(path.relative_to(root.parent)), when)
        entry.compress_type = zipfile.ZIP_DEFLATED
        packed.writestr(entry, path.read_bytes())
END
}

work=$target/packaging
rm -rf "$work"
mkdir -p "$work" "$out"
for kind in "${kinds[@]}"; do
    [ "$kind" != ros ] || continue
    [ $build = 0 ] || build_program "$kind"
    [ -f "$(program_of "$kind")" ] || fail "found no $(program_of "$kind"); leave --no-build out to build it"
done
manual "$work/manual"
for kind in "${kinds[@]}"; do
    case $kind in
    ros | windows) "$kind" ;;
    *) debian "$kind" ;;
    esac
done
rm -rf "$work"
ls -l "$out"
