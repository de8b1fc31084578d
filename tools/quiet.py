#!/usr/bin/env python3
"""Runs benches on a machine that others use too, and keeps what was measured while they did not.

    tools/quiet.py                      # everything, about ten minutes on a quiet machine
    tools/quiet.py frame limits/memory  # what has one of these in its name
    tools/quiet.py --tries 6 global

Each bench function is run by itself. Before, the script waits (a minute at most) until no other process
runs; after, it compares what the machine's processors did with what the bench did: the rest is others' work.
It runs again, --tries times at most, until that rest is below 5 % of the processors' time, and keeps the
median time of the run with the least of it. With --cpu it does not wait: one thread, and the processor time that it gets. Prints: name, median, and the rest in per cent of all processors.
"""

import argparse
import glob
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def busy():
    """Seconds that all processors together have worked."""
    with open("/proc/stat") as f:
        ticks = [int(v) for v in f.readline().split()[1:9]]
    user, nice, system, _idle, _wait, irq, soft, steal = ticks
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def own():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def running():
    with open("/proc/loadavg") as f:
        return int(f.read().split()[3].split("/")[0]) - 1


def wait_for_quiet(seconds):
    end, calm = time.time() + seconds, 0
    while calm < 3 and time.time() < end:
        calm = calm + 1 if running() == 0 else 0
        time.sleep(0.2)


def executables():
    command = ["cargo", "bench", "--no-run", "-p", "benches", "--message-format=json"]
    out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    for line in out.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["kind"] == ["bench"]:
            yield message["executable"]


def cpu_clock():
    """The environment in which a bench runs on one thread and counts processor time."""
    library = os.path.join(tempfile.gettempdir(), f"cpu_clock.{os.getpid()}.so")
    source = os.path.join(ROOT, "tools", "cpu_clock.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": library, "RAYON_NUM_THREADS": "1"}


def measure(executable, name, seconds, extra):
    """Median in seconds, others' share of the machine; None where the bench has no such function."""
    folder = tempfile.mkdtemp()
    try:
        environment = dict(os.environ, CRITERION_HOME=folder, **extra)
        command = [executable, "--bench", "--exact", name, "--noplot", "--warm-up-time", "0.5"]
        command += ["--measurement-time", str(seconds)]
        before = (time.time(), busy(), own())
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        spent = [now - then for now, then in zip((time.time(), busy(), own()), before)]
        found = glob.glob(folder + "/**/new/estimates.json", recursive=True)
        if not found:
            return None
        with open(found[0]) as f:
            median = json.load(f)["median"]["point_estimate"] / 1e9
        return median, max(0.0, spent[1] - spent[2]) / (spent[0] * os.cpu_count())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--wait", type=float, default=60.0, help="seconds to wait for quiet before a try")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, a function")
    parser.add_argument("--cpu", action="store_true", help="count processor time on one thread")
    args = parser.parse_args()
    extra = cpu_clock() if args.cpu else {}
    if args.cpu:
        args.tries, args.wait = 1, 0.0
    for executable in executables():
        listed = subprocess.run([executable, "--bench", "--list"], cwd=ROOT, capture_output=True, text=True)
        for name in re.findall(r"^(.*): benchmark$", listed.stdout, re.M):
            if args.names and not any(part in name for part in args.names):
                continue
            best = None
            for _ in range(args.tries):
                wait_for_quiet(args.wait)
                got = measure(executable, name, args.seconds, extra)
                if got and (best is None or got[1] < best[1]):
                    best = got
                if best is None or best[1] < 0.05:
                    break
            if best:
                print(f"{name:60s} {best[0] * 1e3:12.4f} ms   others {best[1] * 100:3.0f} %", flush=True)


if __name__ == "__main__":
    sys.exit(main())
