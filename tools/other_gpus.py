#!/usr/bin/env python3
"""Predicts what the native network takes on GPUs that it did not run on, from its steps measured on another.

    other_gpus.py TABLE RECIPE...

TABLE: the output of `mast3r-slam bench --only network --backend native --layers`, measured with the kernels that the
other GPU has: MAST3R_NATIVE_KERNELS=portable. RECIPE: engines/*.yaml, whose GPU's data sheet figures are used.

Each step took LAUNCH and its limit divided by a part: of the tensor cores' rate if it has products, of the memory's
bandwidth otherwise. The parts of all steps of a kind together are taken over to the other GPU, where a step takes
LAUNCH and its products or its bytes, whichever are longer; bytes beside products have the norms' part.
"""

import pathlib
import re
import sys
from typing import NamedTuple

LAUNCH = 1.0  # µs from one launch of a graph to the next
# Of the rate that a data sheet gives for Hopper's tensor cores, what the portable kernels' instruction, mma, reaches
# there at best (arXiv 2402.13499). Ampere's and GeForce's tensor cores have no other.
HOPPERS_MMA = 0.63

ROW = re.compile(
    r"(?P<part>\w+)\s+(?P<step>.+?)\s+(?P<count>\d+)\s+(?P<time>[\d.]+)\s+[\d.]+\s+(?P<mop>[\d.]+)\s+(?P<kb>[\d.]+)\s+"
    r"(?P<limit>[\d.]+) (?P<bound>pro|mem)\s+[\d.]+\s+(?P<kernel>\w+)$"
)
# The first of these that a kernel's name contains.
KINDS = (
    ("atten", "attention"),
    ("norm", "norms"),
    ("conv", "convolutions"),
    ("enlarged", "convolutions"),
    ("enlarge", "enlargements"),
    ("linear", "linear layers"),
    ("fed", "linear layers"),
)


class Row(NamedTuple):
    part: str
    kind: str
    count: int
    time: float  # µs
    operations: float
    bytes: float
    limit: float  # µs
    bound: str


def kind_of(kernel):
    if kernel.startswith("ms_native_convert"):
        return "others"
    return next((kind for word, kind in KINDS if word in kernel), "others")


def rows_of(text):
    rows = []
    for line in text.splitlines():
        if match := ROW.match(line.strip()):
            kind = kind_of(match["kernel"])
            # Only the tensor cores' products count, which others have none of.
            operations = 0.0 if kind == "others" else float(match["mop"]) * 1e6
            time, kilobytes, limit = (float(match[key]) for key in ("time", "kb", "limit"))
            rows.append(
                Row(match["part"], kind, int(match["count"]), time, operations, kilobytes * 1e3, limit, match["bound"])
            )
    return rows


def rate_of(rows):
    """Operations a microsecond of the measured GPU's tensor cores."""
    return max(row.operations / row.limit for row in rows if row.bound == "pro")


def reached(rows, limit):
    """Part of the limit that these steps reach between launches; None without steps."""
    limits = sum(limit(row) * row.count for row in rows)
    times = sum(max(row.time - LAUNCH, limit(row)) * row.count for row in rows)
    return limits / times if rows else None


def gpu_of(recipe):
    """Name, operations a second and bytes a second of a recipe's GPU."""
    text = recipe.read_text().split("\ngpu:", 1)[1]
    value = lambda key: re.search(rf"^  {key}: (.+)$", text, re.M)[1]
    return value("name"), float(value("fp16_tflops")) * 1e12, float(value("bandwidth_gb_s")) * 1e9


def predict(rows, parts, rate, bandwidth):
    """Milliseconds of {(part, kind): ...}."""
    sums = {}
    for row in rows:
        of_products, of_memory = parts[row.kind]
        products = row.operations / (rate * of_products) if row.operations else 0.0
        time = LAUNCH + 1e6 * max(products, row.bytes / (bandwidth * of_memory))
        sums[(row.part, row.kind)] = sums.get((row.part, row.kind), 0.0) + time * row.count / 1e3
    return sums


def main():
    rows = rows_of(pathlib.Path(sys.argv[1]).read_text())
    if not rows:
        sys.exit(f"{sys.argv[1]} holds no table of steps: run bench with --layers")
    rate = rate_of(rows)
    moving = reached([row for row in rows if row.kind == "norms"], lambda row: row.limit)
    parts = {}
    for kind in sorted({row.kind for row in rows}):
        with_products = [row for row in rows if row.kind == kind and row.operations]
        without = [row for row in rows if row.kind == kind and not row.operations]
        of_products = reached(with_products, lambda row: row.operations / rate)
        parts[kind] = (of_products, reached(without, lambda row: row.limit) or moving)
    faster = {kind: (of and min(of / HOPPERS_MMA, 1.0), memory) for kind, (of, memory) in parts.items()}
    measured = {}
    for row in rows:
        measured[(row.part, row.kind)] = measured.get((row.part, row.kind), 0.0) + row.time * row.count / 1e3
    gpus = [gpu_of(pathlib.Path(path)) for path in sys.argv[2:]]
    names = [name for name, _, _ in gpus]
    print("| | launches | part of products | part of memory | measured, ms | " + " | ".join(names) + " |")
    print("|---" * (5 + len(gpus)) + "|")
    predicted = [[predict(rows, of, rate, bandwidth) for of in (parts, faster)] for _, rate, bandwidth in gpus]
    cell = lambda low, high: f"{high:.2f} to {low:.2f}"
    for part in dict.fromkeys(row.part for row in rows):
        kinds = sorted((kind for of, kind in measured if of == part), key=lambda kind: -measured[(part, kind)])
        for kind in kinds:
            count = sum(row.count for row in rows if (row.part, row.kind) == (part, kind))
            cells = [cell(*(times[(part, kind)] for times in of_gpu)) for of_gpu in predicted]
            of_products, of_memory = ("" if of is None else f"{of:.0%}" for of in parts[kind])
            print(f"| {part}: {kind} | {count} | {of_products} | {of_memory} | {measured[(part, kind)]:.2f} | "
                  + " | ".join(cells) + " |")
        count = sum(row.count for row in rows if row.part == part)
        total = lambda times: sum(time for (of, _), time in times.items() if of == part)
        cells = [cell(*map(total, of_gpu)) for of_gpu in predicted]
        print(f"| **{part}** | {count} | | | **{total(measured):.2f}** | " + " | ".join(f"**{c}**" for c in cells) + " |")


if __name__ == "__main__":
    main()
