#!/usr/bin/env bash
# Installs the Debian package for this machine, runs it as a user would, and removes it; unpacks the others:
#     deploy/check_packages.sh [--whole]
# As root it really installs, and expects no other installation; otherwise it unpacks. --whole tracks the whole demo
# instead of its first frames. The packages are those of deploy/release.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
whole=0
case "${1-}" in
--whole) whole=1 ;;
"") ;;
*)
    echo "$0: expected --whole, found $1" >&2
    exit 2
    ;;
esac

fail() {
    echo "$0: $*" >&2
    exit 1
}

work=$target/package-check
rm -rf "$work"
mkdir -p "$work/run"
architecture=$(dpkg --print-architecture)
deb=$(ls "$target"/packages/mast3r-slam_*_"$architecture".deb) || fail "found no package; run deploy/release.sh"

root=$work/root
if [ "$(id -u)" = 0 ]; then
    ! dpkg-query --show mast3r-slam >/dev/null 2>&1 || fail "mast3r-slam is installed already; remove it first"
    dpkg --install "$deb" >/dev/null
    trap 'dpkg --purge mast3r-slam >/dev/null 2>&1 || true' EXIT
    root=
else
    dpkg --extract "$deb" "$root"
fi
program=$root/usr/bin/mast3r-slam

# Nothing of the clone helps: another folder, no variables.
unset MAST3R_SLAM_SHARE
cd "$work/run"
"$program" --version
"$program" doctor --json >doctor.json || fail "doctor finds something missing: $(cat doctor.json)"
python3 - "$root/usr/share/mast3r_slam" <<'END'
import json, sys
report = json.load(open("doctor.json"))
found = {finding["name"]: finding for finding in report["findings"]}
for name in ("weights", "demo"):
    if found[name]["state"] != "ok" or sys.argv[1] not in found[name]["found"].replace("/usr/bin/../", "/usr/"):
        sys.exit(f"{name}: expected a file below {sys.argv[1]}, found {found[name]}")
if not report["program"]["commit"]:
    sys.exit("the program names no commit; build it with deploy/release.sh")
END
"$program" doctor >doctor.txt
"$program" selftest --golden --json >selftest.json || fail "the self-test failed: $(cat selftest.json)"
"$program" weights list >/dev/null
if command -v systemd-analyze >/dev/null; then
    for unit in mast3r-slam mast3r-slam-engines; do
        path=$root/usr/lib/systemd/system/$unit.service
        # Man pages are not looked up: a container may have no man.
        [ -n "$root" ] || systemd-analyze verify --man=no "$path" || fail "systemd finds mistakes in $unit.service"
        # Tenths: 0 is best, 100 worst.
        systemd-analyze security --offline=true --no-pager --threshold=40 "$path" >security.txt ||
            fail "$unit.service is too exposed: $(tail -1 security.txt)"
        tail -1 security.txt
    done
fi
if [ $whole = 1 ]; then
    "$program" demo --out out
else
    "$program" run "$root/usr/share/mast3r_slam/assets/room_loop" --end 8 --size 128 --no-progress --out out
fi
for file in trajectory.txt cloud.ply report.html; do
    [ -s "out/$file" ] || fail "the installed program left no $file"
done
zcat "$root/usr/share/man/man1/mast3r-slam-run.1.gz" | grep -q 'save\\-map' ||
    fail "the man page of run is not complete"
bash -c "source $root/usr/share/bash-completion/completions/mast3r-slam && complete -p mast3r-slam" >/dev/null ||
    fail "bash cannot read its completions"

if [ -z "$root" ]; then
    dpkg --purge mast3r-slam >/dev/null
    for left in /usr/bin/mast3r-slam /usr/share/mast3r_slam /usr/share/doc/mast3r-slam /etc/mast3r-slam \
        /usr/lib/systemd/system/mast3r-slam.service; do
        ! [ -e "$left" ] || fail "$left is left after removal"
    done
fi
for other in "$target"/packages/*; do
    # Into a file: a reader that ends early would end dpkg-deb with an error.
    case $other in
    *.deb) dpkg-deb --contents "$other" >contents.txt ;;
    *.zip) python3 -m zipfile --list "$other" >contents.txt ;;
    esac
    case $other in
    *ros-jazzy-*.deb)
        for part in ./opt/ros/jazzy/share/mast3r_slam/package.xml \
            ./opt/ros/jazzy/share/ament_index/resource_index/packages/mast3r_slam \
            './opt/ros/jazzy/lib/mast3r_slam/mast3r-slam -> /usr/bin/mast3r-slam'; do
            grep -q " $part$" contents.txt || fail "$other has no $part"
        done
        ;;
    *.deb)
        grep -q './usr/share/mast3r_slam/engines/mast3r-mini/model.safetensors' contents.txt ||
            fail "$other has no model"
        ;;
    *.zip)
        for part in bin/mast3r-slam.exe share/mast3r_slam/engines/mast3r-mini/model.safetensors windows.md; do
            grep -q "/$part " contents.txt || fail "$other has no $part"
        done
        ;;
    esac
done
echo "-- the packages are complete"
