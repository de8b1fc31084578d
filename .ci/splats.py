#!/usr/bin/env python3
"""Checks files of splats with an independent reader: splats.py PROGRAM SPLAT_TRANSFORM.

Makes random splats, has PROGRAM convert them to each format, has PlayCanvas' splat-transform read the results, and
compares every value with the original, within the format's steps.
"""

import csv
import math
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

program, reader = sys.argv[1:]
ROWS = 1000


def names(degree):
    rest = 3 * ((degree + 1) ** 2 - 1)
    return (
        ["x", "y", "z", "nx", "ny", "nz"]
        + [f"f_dc_{k}" for k in range(3)]
        + [f"f_rest_{k}" for k in range(rest)]
        + ["opacity"]
        + [f"scale_{k}" for k in range(3)]
        + [f"rot_{k}" for k in range(4)]
    )


def made(degree):
    draw = random.Random(degree + 1).uniform
    for _ in range(ROWS):
        row = {"nx": 0, "ny": 0, "nz": 0}
        for name in names(degree)[:3]:
            row[name] = draw(-4, 4)
        for name in names(degree)[6:]:
            if name.startswith("scale"):
                row[name] = draw(-5, -3)
            elif name == "opacity":
                row[name] = draw(-3, 3)
            else:
                row[name] = draw(-0.6, 0.6)
        row["rot_0"] += 1
        yield row


def write(path, degree, rows):
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(rows)}\n"
    head += "".join(f"property float {name}\n" for name in names(degree)) + "end_header\n"
    with open(path, "wb") as file:
        file.write(head.encode())
        for row in rows:
            file.write(struct.pack(f"<{len(names(degree))}f", *(row[name] for name in names(degree))))


def read(path):
    out = path.with_suffix(".csv")
    subprocess.run([reader, "-w", str(path), str(out)], check=True, capture_output=True)
    with open(out) as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def turned(row):
    """The row with the axes of spz: y and z point the other way."""
    row = dict(row)
    for name in ("y", "z", "rot_2", "rot_3"):
        row[name] = -row[name]
    # Harmonics that are odd in y and z together, by colour.
    odd = [0, 1, 3, 6, 8, 10, 11, 13]
    bands = sum(name.startswith("f_rest_") for name in row) // 3
    for colour in range(3):
        for k in odd:
            if k < bands:
                row[f"f_rest_{colour * bands + k}"] *= -1
    return row


def compare(what, expected, found, step):
    assert len(found) == len(expected), f"{what}: {len(found)} rows"
    unmatched = list(expected)
    for b in found:
        # A compressed PLY has an order of its own.
        a = min(unmatched, key=lambda a: sum((a[k] - b[k]) ** 2 for k in "xyz"))
        unmatched.remove(a)
        for name in a:
            if name.startswith(("n", "rot")):
                continue
            kind = "position" if name in "xyz" else name.split("_")[0] + ("_rest" if "rest" in name else "")
            u, v = (sigmoid(a[name]), sigmoid(b[name])) if name == "opacity" else (a[name], b[name])
            assert abs(u - v) <= step[kind], f"{what}: {name} is {v}, expected {u}"
        q, p = ([r[f"rot_{k}"] for k in range(4)] for r in (a, b))
        cosine = abs(sum(x * y for x, y in zip(q, p))) / math.sqrt(sum(x * x for x in q) * sum(x * x for x in p))
        assert 2 * math.acos(min(1, cosine)) <= step["rotation"], f"{what}: rotations differ"
    print(f"{what}: {len(found)} rows agree")


STEPS = {
    ".ply": dict(position=1e-5, f=1e-5, f_rest=1e-5, opacity=1e-5, scale=1e-5, rotation=2e-3),
    ".compressed.ply": dict(position=0.005, f=0.006, f_rest=0.017, opacity=0.003, scale=0.002, rotation=0.006),
    ".spz": dict(position=2e-4, f=0.015, f_rest=0.07, opacity=0.003, scale=0.032, rotation=0.01),
}

with tempfile.TemporaryDirectory() as folder:
    for degree in (0, 1, 3):
        rows = list(made(degree))
        source = Path(folder, f"{degree}.ply")
        write(source, degree, rows)
        for suffix, step in STEPS.items():
            path = Path(folder, f"{degree}-out{suffix}")
            subprocess.run([program, "splat", "convert", source, path], check=True, stdout=subprocess.DEVNULL)
            expected = [turned(row) for row in rows] if suffix == ".spz" else rows
            compare(f"degree {degree}, {suffix}", expected, read(path), step)
