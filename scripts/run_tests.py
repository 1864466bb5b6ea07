#!/usr/bin/env python3
"""Builds the tests and runs their binaries side by side.

`cargo test` runs one binary after the other, and most of ours wait for a server for half of their time. What is said
about a binary comes when it has ended: one line if it passed, everything that it printed otherwise.

    scripts/run_tests.py [--beside COMMAND]... [cargo's options for packages and features]...
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

CARGO = os.environ.get("CARGO", "cargo")
# What takes longest has to begin first, or one core waits for it in the end.
LONGEST = ["it", "redis_cluster", "redis", "fault_matrix"]


def built(options):
    """The binaries of the tests as (name, command, folder, environment), as cargo itself would run them."""
    cargo = [CARGO, "test", "--no-run", "--message-format=json-render-diagnostics", *options]
    with subprocess.Popen(cargo, stdout=subprocess.PIPE, text=True) as build:
        messages = [json.loads(line) for line in build.stdout if line.startswith("{")]
    if build.returncode:
        sys.exit(build.returncode)
    for message in messages:
        if message["reason"] == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            environment = {**os.environ, "CARGO": CARGO, "CARGO_MANIFEST_DIR": str(folder)}
            yield f"{folder.name}/{message['target']['name']}", [message["executable"]], folder, environment


def longest_first(job):
    target = job[0].rpartition("/")[2]
    return LONGEST.index(target) if target in LONGEST else len(LONGEST)


def ran(name, command, folder, environment):
    begin = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )
    return name, time.monotonic() - begin, done.returncode, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", action="append", default=[], help="a command to run along with the binaries")
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="how many run at a time")
    arguments, options = parser.parse_known_args()

    here = Path.cwd()
    jobs = sorted(built(options), key=longest_first)
    beside = [("documentation", [CARGO, "test", "--doc", *options], here, None)]
    beside += [(text, shlex.split(text), here, None) for text in arguments.beside]
    jobs[1:1] = beside

    failed = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for done in as_completed([pool.submit(ran, *job) for job in jobs]):
            name, seconds, code, output = done.result()
            passed = sum(int(count) for count in re.findall(r"^test result: .*?(\d+) passed", output, re.MULTILINE))
            print(f"{'FAILED' if code else 'passed':7}{name:40}{passed:5} tests {seconds:6.1f} s", flush=True)
            if code:
                failed.append(name)
                print(output, flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(sorted(failed))}")


if __name__ == "__main__":
    main()
