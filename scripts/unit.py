#!/usr/bin/env python3
"""Runs the unit tests, for make unit: compiles all of them, then runs several test programs at once, because many tests wait for timers.

    unit.py [OPTION OF CARGO TEST]...

Prints a line for each program that passed and the output of each that failed. RUST_TEST_THREADS is the number of tests at once in each
program.
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CARGO = os.environ.get("CARGO", "cargo")
# More would keep the cores busier while tests wait, but some tests search all of their memory and others wait for the kernel.
AT_ONCE = max(2, (os.cpu_count() or 1) // 2)


def programs(options):
    """Compiles the tests and returns the name, the folder and the command of each test program."""
    build = subprocess.Popen(
        [CARGO, "test", "--no-run", "--quiet", "--message-format=json-render-diagnostics", *options], stdout=subprocess.PIPE, text=True
    )
    found = []
    for line in build.stdout:
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = Path(message["manifest_path"]).parent
            source = Path(message["target"]["src_path"]).relative_to(folder)
            found.append((f"{folder.name} {source}", folder, [message["executable"], "--quiet"]))
    if build.wait():
        sys.exit(build.returncode)
    return found


def run(program):
    """Runs a test program. Prints its output if it fails, in one piece."""
    name, folder, command = program
    began = time.monotonic()
    # cargo sets this variable as well, and runs each program in the folder of its package.
    environment = {**os.environ, "CARGO_MANIFEST_DIR": str(folder)}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    tests = subprocess.Popen(command, cwd=folder, env=environment, text=True, errors="replace", **pipes)
    output = tests.stdout.read()
    _, status, usage = os.wait4(tests.pid, 0)
    tests.returncode = os.waitstatus_to_exitcode(status)
    took = f"{time.monotonic() - began:.1f} s ({usage.ru_utime + usage.ru_stime:.1f} s of CPU)"
    if tests.returncode:
        print(f"{output}\n{name}: failed with {tests.returncode} after {took}", flush=True)
        return name
    passed = sum(int(number) for number in re.findall(r"^test result: ok\. (\d+) passed", output, re.MULTILINE))
    if passed:
        print(f"{name}: {passed} passed in {took}", flush=True)
    return None


def main():
    options = sys.argv[1:]
    # The larger ones first, since most of them take longer.
    everything = sorted(programs(options), key=lambda program: -os.path.getsize(program[2][0]))
    everything.append(("examples in the documentation", Path.cwd(), [CARGO, "test", "--doc", "--quiet", *options]))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = [name for name in pool.map(run, everything) if name]
    if failed:
        sys.exit(f"unit tests failed: {', '.join(failed)}")


main()
