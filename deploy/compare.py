#!/usr/bin/env python3
"""Compares trajectories of one sequence in TUM format: compare.py EXPECTED FOUND [NUDGED ...].

Fails if the time stamps differ, if there are fewer than three poses, or if a camera's position differs by more than a
limit in metres or its orientation by more than the same number of radians. The limit is 1e-4, or twice what the
trajectories NUDGED differ from EXPECTED: those of the same program with weights that differ in their last bit
(nudge.py).
"""

import math
import sys

LIMIT = 1e-4


def poses(path):
    rows = [line.split() for line in open(path, encoding="utf-8") if line.strip() and not line.startswith("#")]
    found = [(row[0], [float(value) for value in row[1:]]) for row in rows]
    # A comparison with one that is not finite would hold.
    if not all(math.isfinite(value) for _, pose in found for value in pose):
        sys.exit(f"{path}: expected finite poses")
    return found


def difference(expected, path):
    """The largest distance in metres and angle in radians between two poses."""
    found = poses(path)
    if [stamp for stamp, _ in expected] != [stamp for stamp, _ in found]:
        sys.exit(f"{path}: expected the time stamps of the first trajectory, found others")
    if len(found) < 3:
        sys.exit(f"{path}: expected 3 poses or more, found {len(found)}")
    metres = radians = 0.0
    for (_, a), (_, b) in zip(expected, found):
        metres = max(metres, math.dist(a[:3], b[:3]))
        # A unit quaternion and its negative are the same rotation; the distance is half the angle.
        half = min(math.dist(a[3:], b[3:]), math.dist(a[3:], [-x for x in b[3:]]))
        radians = max(radians, 2 * half)
    return metres, radians


def main(expected_path, found_path, *nudged_paths):
    expected = poses(expected_path)
    metres, radians = difference(expected, found_path)
    travelled = max(math.dist(pose[:3], expected[0][1][:3]) for _, pose in expected)
    nudged = [max(difference(expected, path)) for path in nudged_paths]
    limit = max([LIMIT] + [2 * value for value in nudged])
    print(
        f"{found_path}: {len(expected)} poses, up to {travelled:.3f} m from the first; "
        f"they differ by up to {metres:.1e} m and {radians:.1e} rad"
        + (f"; the last bit of the weights moves them by up to {max(nudged):.1e}" if nudged else "")
    )
    if not (metres <= limit and radians <= limit):
        sys.exit(f"{found_path}: expected at most {limit:.1e} m and radians of difference")


main(*sys.argv[1:])
