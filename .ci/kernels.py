#!/usr/bin/env python3
"""Checks the compiled kernels and writes what they take.

    kernels.py FOLDER [--write]

FOLDER is the build script's output folder: NAME.fatbin and the compiler's report NAME.log for each
kernels/**/NAME.cu. Fails if a kernel spills registers, if one holds an fp64 instruction and is not
listed in kernels/allowed_fp64.txt, if that list names a kernel that holds none, if a kernel does not
fit on a multiprocessor of an architecture that it is compiled for, or if docs/kernels.md is not what
these kernels give (--write writes it). Needs cuobjdump on PATH.
"""

import pathlib
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "kernels.md"
ALLOWED = ROOT / "kernels" / "allowed_fp64.txt"
SHARED = ROOT / "kernels" / "shared_memory.txt"


class Limits(NamedTuple):
    """What a multiprocessor has, from CUDA's table of compute capabilities and its cuda_occupancy.h."""

    threads: int
    blocks: int
    shared: int  # bytes
    shared_of_block: int  # bytes, static and dynamic


LIMITS = {
    "sm_87": Limits(1536, 16, 164 << 10, 163 << 10),
    "sm_90": Limits(2048, 32, 228 << 10, 227 << 10),
    "sm_110": Limits(1536, 24, 228 << 10, 227 << 10),
    "sm_120": Limits(1536, 24, 100 << 10, 99 << 10),
}
REGISTERS = 65536
# A warp has registers in groups of 256. Each of a multiprocessor's four parts has its own.
REGISTER_UNIT, PARTS = 256, 4
# Shared memory comes in units, and the system takes some of each block's.
SHARED_UNIT, SHARED_OF_SYSTEM = 128, 1024

# Arithmetic, comparisons and conversions on 64-bit floats, as the disassembler names them.
FP64 = re.compile(r"\b(DADD|DMUL|DFMA|DSETP|DMNMX|DMMA)\b|\b(F2F|F2I|I2F|FRND)[.\w]*\bF64\b|\bMUFU\.\w*64H\b")

HEAD = """# Kernels

For each kernel in `kernels/*.cu` and `kernels/native/*.cu`: registers per thread, shared memory per block where there
is any (+ bytes, static and dynamic), and how many blocks fit on a multiprocessor (× blocks). Dynamic shared memory is
what the wrappers in `src/compute/cuda` and `src/inference/native` choose, from `kernels/shared_memory.txt`. Kernels for
sm_90 alone that are not in that list have none of it in this table, nor a number of blocks. An empty cell: no code for
that architecture. `.ci/kernels.py` writes this file. CI fails if it is not current, if a kernel spills registers, if no
block of a kernel fits, and if a kernel outside `kernels/allowed_fp64.txt` uses 64-bit floats (marked fp64).

A multiprocessor of a Jetson Orin (sm_87) has 164 KB of shared memory, of a GeForce RTX 50 (sm_120) 100 KB, of the
others 228 KB; a block can have 1 KB less. It runs 1536 threads at a time, that of sm_90 2048.
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


def threads_in(fatbin):
    """Threads of a block that each kernel was compiled for: {(kernel, architecture): threads}."""
    command = ["cuobjdump", "-elf", str(fatbin)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout
    found, architecture, kernel, wanted = {}, None, None, False
    for line in listing.splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            architecture = match[1]
        elif match := re.match(r"\.nv\.info\.(\w+)$", line):
            kernel = match[1]
        elif "EIATTR_MAX_THREADS" in line:
            wanted = True
        elif wanted and (match := re.search(r"Value:\s+(0x\w+) (0x\w+) (0x\w+)", line)):
            x, y, z = (int(n, 16) for n in match.groups())
            found[(kernel, architecture)] = x * y * z
            wanted = False
    return found


def declares_dynamic(file):
    """Whether kernels of a file can take dynamic shared memory."""
    text = file.read_text()
    included = (file.parent / name for name in re.findall(r'#include "([\w/.]+)"', text))
    return "extern __shared__" in text or any(declares_dynamic(other) for other in included if other.exists())


def of_all(folder, files, read):
    """What `read` finds in the fat binaries of all these files."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(read, [folder / (name + ".fatbin") for name in files]))


def dynamic_shared():
    """{(kernel, architecture or "all"): bytes} of the list."""
    rows = (line.split() for line in SHARED.read_text().splitlines() if not line.startswith("#"))
    return {(kernel, architecture): int(number) for kernel, architecture, number in rows}


def blocks(limits, threads, registers, shared):
    """Blocks that fit on a multiprocessor, as cuda_occupancy.h counts them."""
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // PARTS // of_warp * PARTS // warps
    if shared > limits.shared_of_block:
        return 0
    taken = -(-(shared + SHARED_OF_SYSTEM) // SHARED_UNIT) * SHARED_UNIT
    return min(limits.blocks, limits.threads // (32 * warps), by_registers, limits.shared // taken)


def fitting(rows, threads):
    """What does not fit, and {(kernel, architecture): (shared bytes, blocks)} of all that is known."""
    listed, failures, found = dynamic_shared(), [], {}
    sources = {path.stem: path for path in (ROOT / "kernels").rglob("*.cu")}
    declaring = {name for name, path in sources.items() if declares_dynamic(path)}
    for (name, kernel), row in rows.items():
        for architecture, (registers, static, _) in row.items():
            dynamic = listed.get((kernel, architecture), listed.get((kernel, "all")))
            if dynamic is None and name in declaring:
                if set(row) != {"sm_90"}:
                    failures.append(f"{SHARED.name} does not say what {kernel} takes on {architecture}")
                continue
            shared = static + (dynamic or 0)
            count = blocks(LIMITS[architecture], threads[(kernel, architecture)], registers, shared)
            found[(kernel, architecture)] = (shared, count)
            if count == 0:
                failures.append(
                    f"{name}.cu: no block of {kernel} fits on {architecture}: {threads[(kernel, architecture)]} threads "
                    f"with {registers} registers each, {shared} bytes of shared memory"
                )
    kernels = {kernel for _, kernel in rows}
    failures += [f"{SHARED.name} lists {kernel}, which is gone" for kernel, _ in listed if kernel not in kernels]
    return failures, found


def allowed():
    """{kernel: reason} of the list: `kernel: reason` a line, # for comments."""
    rows = {}
    for line in ALLOWED.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            kernel, _, reason = line.partition(":")
            rows[kernel.strip()] = reason.strip()
    return rows


def table(rows, fp64, fits):
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
                registers, static, _ = row[architecture]
                shared, count = fits.get((kernel, architecture), (static, None))
                cell = f"{registers} + {shared}" if shared else str(registers)
                cells.append(cell if count is None else f"{cell} × {count}")
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
    files = sorted({name for name, _ in rows})
    fp64 = {k: v for found in of_all(folder, files, fp64_in) for k, v in found.items()}
    threads = {k: v for found in of_all(folder, files, threads_in) for k, v in found.items()}
    unfit, fits = fitting(rows, threads)
    failures += unfit
    permitted = allowed()
    for kernel, instruction in sorted(fp64.items()):
        if kernel not in permitted:
            failures.append(f"{kernel} uses 64-bit floats ({instruction}) and is not in {ALLOWED.name}")
    for kernel, reason in permitted.items():
        if kernel not in fp64:
            failures.append(f"{ALLOWED.name} lists {kernel}, which uses no 64-bit floats or is gone")
        if not reason:
            failures.append(f"{ALLOWED.name} gives no reason for {kernel}")
    text = table(rows, fp64, fits)
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
