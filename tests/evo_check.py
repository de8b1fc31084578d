#!/usr/bin/env python3
"""Compares `mast3r-slam eval ESTIMATE TRUTH --json` with evo 1.38.1, run live, to 1e-6.

    pip install evo==1.38.1
    python3 tests/evo_check.py target/release/mast3r-slam [ESTIMATE TRUTH]...

Without pairs: every case of tests/data/eval that the command line can express, and new random walks.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "data/eval"))
import make_fixtures  # noqa: E402

LIMIT = 1e-6


def difference(ours, evo, name):
    """The largest difference of all figures, or an error that says what is missing."""
    assert len(ours["errors"]) == len(evo["errors"]), f"{name}: associated poses"
    pairs = [(o[1], e) for o, e in zip(ours["errors"], evo["errors"])]
    for key in ("ate", "rpe_translation", "rpe_rotation"):
        pairs += [(ours[key][s], evo[key][s]) for s in ("rmse", "mean", "median", "std", "min", "max")]
    if "scale" in evo:
        pairs.append((ours["scale"], evo["scale"]))
    return max(abs(o - e) for o, e in pairs)


def check(program, estimate, truth, options):
    name = f"{Path(estimate).name} {Path(truth).name} {options}"
    command = [program, "eval", str(estimate), str(truth), "--json"]
    command += ["--align", options.get("align", "sim3")]
    command += ["--tolerance", str(options.get("tolerance", 0.01))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    worst = difference(json.loads(done.stdout), make_fixtures.by_evo(estimate, truth, options), name)
    print(f"{worst:.1e}  {name}")
    assert worst < LIMIT, f"{name}: differs by {worst}"


def random_pair(folder, rng):
    n = int(rng.integers(3, 300))
    t = 1.7e9 + np.sort(rng.uniform(0, n / 20, n)).round(6)
    xyz = np.cumsum(rng.normal(0, 0.05, (n, 3)), 0)
    rotation = make_fixtures.Rotation.from_rotvec(np.cumsum(rng.normal(0, 0.05, (n, 3)), 0))
    moved = make_fixtures.moved(t, xyz, rotation, rng.uniform(0.3, 3), 0.02, 0.02, rng.uniform(-0.004, 0.004))
    kept = np.sort(rng.choice(n, max(3, int(n * rng.uniform(0.3, 1))), replace=False))
    make_fixtures.HERE = folder
    make_fixtures.save("gt.txt", t, xyz, rotation)
    make_fixtures.save("est.txt", *(part[kept] for part in moved), digits=7)
    return folder / "est.txt", folder / "gt.txt"


def main():
    program, given = sys.argv[1], sys.argv[2:]
    for estimate, truth in zip(given[::2], given[1::2]):
        for align in ("sim3", "se3", "none"):
            check(program, estimate, truth, {"align": align})
    if given:
        return
    for estimate, truth, options in make_fixtures.CASES:
        if set(options) <= {"align", "tolerance"}:
            check(program, HERE / "data/eval" / estimate, HERE / "data/eval" / truth, options)
    rng = np.random.default_rng(11)
    with tempfile.TemporaryDirectory() as folder:
        for case in range(12):
            estimate, truth = random_pair(Path(folder), rng)
            check(program, estimate, truth, {"align": ("sim3", "se3", "none")[case % 3]})


if __name__ == "__main__":
    main()
