#!/usr/bin/env python3
"""Compares trajectories of one sequence in TUM format: compare.py EXPECTED FOUND [METRES].

Fails if the time stamps differ, if there are fewer than three poses, or if a camera's position differs by more than
METRES [1e-4] or its orientation by more than METRES radians.
"""

import math
import sys


def poses(path):
    rows = [line.split() for line in open(path, encoding="utf-8") if line.strip() and not line.startswith("#")]
    return [(row[0], [float(value) for value in row[1:]]) for row in rows]


def main(expected_path, found_path, limit="1e-4"):
    expected, found = poses(expected_path), poses(found_path)
    if [stamp for stamp, _ in expected] != [stamp for stamp, _ in found]:
        sys.exit(f"{found_path}: expected the time stamps of {expected_path}, found others")
    if len(found) < 3:
        sys.exit(f"{found_path}: expected 3 poses or more, found {len(found)}")
    metres = radians = travelled = 0.0
    for (_, a), (_, b) in zip(expected, found):
        travelled = max(travelled, math.dist(a[:3], expected[0][1][:3]))
        metres = max(metres, math.dist(a[:3], b[:3]))
        # A unit quaternion and its negative are the same rotation; the distance is half the angle.
        half = min(math.dist(a[3:], b[3:]), math.dist(a[3:], [-x for x in b[3:]]))
        radians = max(radians, 2 * half)
    print(
        f"{found_path}: {len(found)} poses, up to {travelled:.3f} m from the first; "
        f"they differ by up to {metres:.1e} m and {radians:.1e} rad"
    )
    if not (metres <= float(limit) and radians <= float(limit)):
        sys.exit(f"{found_path}: expected at most {limit} m and radians of difference")


main(*sys.argv[1:])
