#!/usr/bin/env python3
"""Checks the compiled kernels and writes what they take.

    kernels.py FOLDER [--write]

FOLDER is the build script's output folder: NAME.fatbin and the compiler's report NAME.log for each
kernels/**/NAME.cu. Fails if a kernel spills registers, if one holds an fp64 instruction and is not
listed in kernels/allowed_fp64.txt, if that list names a kernel that holds none, or if
docs/kernels.md is not what these kernels give (--write writes it). Needs cuobjdump on PATH.
"""

import pathlib
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "kernels.md"
ALLOWED = ROOT / "kernels" / "allowed_fp64.txt"

# Arithmetic, comparisons and conversions on 64-bit floats, as the disassembler names them.
FP64 = re.compile(r"\b(DADD|DMUL|DFMA|DSETP|DMNMX|DMMA)\b|\b(F2F|F2I|I2F|FRND)[.\w]*\bF64\b|\bMUFU\.\w*64H\b")

HEAD = """# Kernels

Registers per thread of each kernel in `kernels/*.cu` and `kernels/native/*.cu`, and shared memory per block where there
is any (+ bytes; without dynamic shared memory, which the wrappers in `src/compute/cuda` and `src/inference/native`
choose). An empty cell: no code for that architecture. `.ci/kernels.py` writes this file. CI fails if
it is not current, if a kernel spills registers, and if a kernel outside `kernels/allowed_fp64.txt` uses 64-bit floats
(marked fp64).
"""


def reports(folder):
    """{(file, kernel): {architecture: (registers, shared, spilled)}} from the compiler's reports."""
    found = {}
    for log in sorted(folder.glob("*.log")):
        if not any((ROOT / "kernels").rglob(log.stem + ".cu")):
            continue  # of a file that is gone
        kernel = None
        for line in log.read_text().splitlines():
            if match := re.search(r"Compiling entry function '(\w+)' for '(sm_\d+)a?'", line):
                kernel, architecture, spilled = match[1], match[2], 0
            elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
                spilled = int(match[1]) + int(match[2])
            elif kernel and (match := re.search(r"Used (\d+) registers", line)):
                shared = re.search(r"(\d+) bytes smem", line)
                row = found.setdefault((log.stem, kernel), {})
                row[architecture] = (int(match[1]), int(shared[1]) if shared else 0, spilled)
                kernel = None
    return found


def fp64_in(fatbin):
    """Kernels of a file with an fp64 instruction: {kernel: one such instruction}."""
    command = ["cuobjdump", "-sass", str(fatbin)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found, kernel = {}, None
    for line in listing.splitlines():
        if match := re.match(r"\s*Function : (\S+)", line):
            kernel = match[1]
        elif kernel and kernel not in found and FP64.search(line):
            found[kernel] = line.split("*/")[1].split(";")[0].strip()
    return found


def disassembled(folder, files):
    """The same of all these files."""
    with ProcessPoolExecutor() as pool:
        found = pool.map(fp64_in, [folder / (name + ".fatbin") for name in files])
        return {kernel: instruction for of_file in found for kernel, instruction in of_file.items()}


def allowed():
    """{kernel: reason} of the list: `kernel: reason` a line, # for comments."""
    rows = {}
    for line in ALLOWED.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            kernel, _, reason = line.partition(":")
            rows[kernel.strip()] = reason.strip()
    return rows


def table(rows, fp64):
    architectures = sorted({a for row in rows.values() for a in row}, key=lambda a: int(a[3:]))
    lines = [HEAD]
    for name in sorted({name for name, _ in rows}):
        lines.append(f"## {name}.cu\n")
        lines.append(f"| kernel | {' | '.join(architectures)} |")
        lines.append("|---" * (len(architectures) + 1) + "|")
        for (file, kernel), row in sorted(rows.items()):
            if file != name:
                continue
            cells = []
            for architecture in architectures:
                if architecture not in row:
                    cells.append("")
                    continue
                registers, shared, _ = row[architecture]
                cells.append(f"{registers} + {shared}" if shared else str(registers))
            mark = " (fp64)" if kernel in fp64 else ""
            lines.append(f"| `{kernel}`{mark} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = reports(folder)
    if not rows:
        sys.exit(f"{folder} holds no report on any kernel")
    failures = []
    for (name, kernel), row in rows.items():
        for architecture, (_, _, spilled) in row.items():
            if spilled:
                failures.append(f"{name}.cu: {kernel} spills {spilled} bytes for {architecture}")
    fp64 = disassembled(folder, sorted({name for name, _ in rows}))
    permitted = allowed()
    for kernel, instruction in sorted(fp64.items()):
        if kernel not in permitted:
            failures.append(f"{kernel} uses 64-bit floats ({instruction}) and is not in {ALLOWED.name}")
    for kernel, reason in permitted.items():
        if kernel not in fp64:
            failures.append(f"{ALLOWED.name} lists {kernel}, which uses no 64-bit floats or is gone")
        if not reason:
            failures.append(f"{ALLOWED.name} gives no reason for {kernel}")
    text = table(rows, fp64)
    if "--write" in sys.argv[2:]:
        TABLE.write_text(text)
    elif not TABLE.exists() or TABLE.read_text() != text:
        failures.append(f"docs/kernels.md is not current: run .ci/kernels.py {folder} --write")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    print(f"{len(rows)} kernels, {sum(len(row) for row in rows.values())} compiled, {len(failures)} errors")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
