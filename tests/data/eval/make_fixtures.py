#!/usr/bin/env python3
"""Writes the trajectories in this folder and expected.json, what evo 1.38.1 says of them.

    pip install evo==1.38.1 && python3 tests/data/eval/make_fixtures.py
"""

import json
from pathlib import Path

import numpy as np
from evo import __version__
from evo.core import metrics, sync
from evo.main_ape import ape
from evo.main_rpe import rpe
from evo.tools import file_interface
from scipy.spatial.transform import Rotation

HERE = Path(__file__).parent
RNG = np.random.default_rng(7)


def path(n, rate, start):
    """A closed walk that also climbs, looking about."""
    t = start + np.arange(n) / rate
    u = np.linspace(0, 2 * np.pi, n)
    xyz = np.stack([2 * np.cos(u), 1.5 * np.sin(u), 0.3 * np.sin(3 * u)], 1)
    rotation = Rotation.from_euler("zyx", np.stack([u, 0.2 * np.sin(2 * u), 0.1 * u], 1))
    return t, xyz, rotation


def moved(t, xyz, rotation, scale, noise, turn, dt=0.0):
    """The same walk seen in another frame, at another scale, with errors."""
    frame = Rotation.from_rotvec([0.4, -1.1, 2.0])
    xyz = frame.apply(xyz + RNG.normal(0, noise, xyz.shape)) / scale + [3, -1, 0.5]
    rotation = frame * rotation * Rotation.from_rotvec(RNG.normal(0, turn, xyz.shape))
    return t + dt, xyz, rotation


def save(name, t, xyz, rotation, digits=6, header=True):
    rows = np.column_stack([t, xyz, rotation.as_quat()])
    lines = ["# timestamp tx ty tz qx qy qz qw"] if header else []
    lines += [" ".join(f"{v:.{digits}f}" for v in row) for row in rows]
    (HERE / name).write_text("\n".join(lines) + "\n")


def write_trajectories():
    t, xyz, rotation = path(120, 30, 1305031102.175304)
    save("gt.txt", t, xyz, rotation)
    save("noisy.txt", *moved(t, xyz, rotation, 1.3, 0.02, 0.01))
    # Fewer poses than the ground truth, each a little late.
    sparse = slice(3, None, 7)
    save("sparse.txt", *moved(t[sparse], xyz[sparse], rotation[sparse], 0.8, 0.05, 0.05, 0.0041))
    # More poses than the ground truth: the ground truth asks.
    dense = path(400, 100, 1305031102.175304)
    save("dense.txt", *moved(*dense, 0.5, 0.01, 0.02), digits=9)
    few = [5, 60, 100]
    save("few.txt", *moved(t[few], xyz[few], rotation[few], 2.0, 0.1, 0.1), header=False)
    # Another clock, four seconds ahead.
    save("offset.txt", *moved(t[::2], xyz[::2], rotation[::2], 1.0, 0.03, 0.02, 4.0))
    # Halfway between two stamps again and again, and repeated stamps.
    tie_t, tie_xyz, tie_rotation = path(40, 10, 1000.0)
    save("tie_gt.txt", tie_t, tie_xyz, tie_rotation)
    save("tie.txt", *moved(tie_t[:30] + 0.05, tie_xyz[:30], tie_rotation[:30], 1.1, 0.01, 0.01))
    repeated = np.sort(np.r_[np.arange(40), np.arange(0, 40, 3)])
    save("repeated.txt", *moved(tie_t[repeated], tie_xyz[repeated], tie_rotation[repeated], 1.1, 0.02, 0.01))
    shuffled = RNG.permutation(60)
    dense_t, dense_xyz, dense_rotation = path(60, 15, 1000.0)
    save("shuffled.txt", *moved(dense_t[shuffled], dense_xyz[shuffled], dense_rotation[shuffled], 0.9, 0.02, 0.01))
    # A nearly straight line: the rotation about it is barely determined.
    line = np.stack([np.linspace(0, 5, 50), 1e-4 * RNG.normal(size=50), np.zeros(50)], 1)
    line_t = 50 + np.arange(50) / 20
    save("line_gt.txt", line_t, line, Rotation.identity(50), digits=9)
    save("line.txt", *moved(line_t, line, Rotation.identity(50), 1.7, 1e-4, 0.001), digits=9)


CASES = [
    # estimate, ground truth, options
    ("noisy.txt", "gt.txt", {}),
    ("noisy.txt", "gt.txt", {"align": "se3"}),
    ("noisy.txt", "gt.txt", {"align": "none", "delta": 10}),
    ("noisy.txt", "gt.txt", {"metres": 0.5}),
    ("sparse.txt", "gt.txt", {}),
    ("sparse.txt", "gt.txt", {"align": "se3", "delta": 3, "tolerance": 0.005}),
    ("dense.txt", "gt.txt", {}),
    ("dense.txt", "gt.txt", {"tolerance": 0.003, "metres": 1.0}),
    ("few.txt", "gt.txt", {}),
    ("few.txt", "gt.txt", {"align": "se3"}),
    ("offset.txt", "gt.txt", {"offset": -4.0}),
    ("offset.txt", "gt.txt", {"offset": -3.0, "tolerance": 0.9, "align": "se3"}),
    ("tie.txt", "tie_gt.txt", {"tolerance": 0.06}),
    ("tie_gt.txt", "tie.txt", {"tolerance": 0.06}),
    ("tie.txt", "tie_gt.txt", {"tolerance": 0.05}),
    ("repeated.txt", "tie_gt.txt", {}),
    ("tie_gt.txt", "repeated.txt", {}),
    ("shuffled.txt", "tie_gt.txt", {"tolerance": 0.04}),
    ("line.txt", "line_gt.txt", {}),
]


def by_evo(estimate, truth, options):
    align = options.get("align", "sim3")
    flags = {"align": align != "none", "correct_scale": align == "sim3"}

    def pair():
        return sync.associate_trajectories(
            file_interface.read_tum_trajectory_file(str(truth)),
            file_interface.read_tum_trajectory_file(str(estimate)),
            max_diff=options.get("tolerance", 0.01),
            offset_2=options.get("offset", 0.0),
        )

    relation = metrics.PoseRelation
    absolute = ape(*pair(), relation.translation_part, **flags)
    out = {"ate": absolute.stats, "errors": absolute.np_arrays["error_array"].tolist()}
    if flags["align"]:
        matrix = absolute.np_arrays["alignment_transformation_sim3"]
        out["scale"] = float(np.cbrt(np.linalg.det(matrix[:3, :3])))
        out["matrix"] = matrix.tolist()
    unit = metrics.Unit.meters if "metres" in options else metrics.Unit.frames
    delta = options.get("metres", options.get("delta", 1))
    for key, what in [("rpe_translation", relation.translation_part), ("rpe_rotation", relation.rotation_angle_deg)]:
        out[key] = rpe(*pair(), what, delta=delta, delta_unit=unit, **flags).stats
    return out


def main():
    assert __version__ == "v1.38.1", __version__
    write_trajectories()
    expected = [
        {"estimate": e, "truth": t, "options": o, "evo": by_evo(HERE / e, HERE / t, o)} for e, t, o in CASES
    ]
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
