#!/usr/bin/env python3
"""Runs a command within limits of memory and time, and says what it took.

    peak.py GIGABYTES SECONDS COMMAND...

Fails if the command does, if it takes longer, or if it ever held more memory than that (resident, of the largest
process, files that are mapped included).
"""

import resource
import subprocess
import sys
import time


def main():
    gigabytes, seconds, command = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    start = time.monotonic()
    try:
        code = subprocess.run(command, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        sys.exit(f"error: {command[0]} took more than {seconds:.0f} s")
    took = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    print(f"{took:.0f} s, at most {peak:.2f} GB of memory")
    if code:
        sys.exit(code)
    if peak > gigabytes:
        sys.exit(f"error: more than {gigabytes} GB of memory")


if __name__ == "__main__":
    main()
