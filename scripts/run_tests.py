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
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

CARGO = shlex.split(os.environ.get("CARGO", "cargo"))
# What takes longest has to begin first, or one core waits for it in the end.
LONGEST = ["it", "redis_cluster", "redis", "fault_matrix"]
# Several times what the longest takes on a slow machine.
PATIENCE_S = 600

running = set()


def built(options):
    """The binaries of the tests as (name, command, folder, what cargo would add to the environment)."""
    cargo = [*CARGO, "test", "--no-run", "--message-format=json-render-diagnostics", *options]
    with subprocess.Popen(cargo, stdout=subprocess.PIPE, text=True) as build:
        messages = [json.loads(line) for line in build.stdout if line.startswith("{")]
    if build.returncode:
        sys.exit(build.returncode)
    for message in messages:
        if message["reason"] == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            added = {"CARGO_MANIFEST_DIR": str(folder)}
            yield f"{folder.name}/{message['target']['name']}", [message["executable"]], folder, added


def longest_first(job):
    target = job[0].rpartition("/")[2]
    return LONGEST.index(target) if target in LONGEST else len(LONGEST)


def ran(name, command, folder, added):
    """What became of it. It writes to a file and not to a pipe, which whoever it leaves behind would keep open."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **added}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        running.add(process)
        try:
            how = ended(process.wait(PATIENCE_S))
        except subprocess.TimeoutExpired:
            how = f"not done within {PATIENCE_S} s"
        finally:
            kill(process)
            running.discard(process)
        output.seek(0)
        return name, time.monotonic() - begin, how, output.read().decode(errors="replace")


def ended(code):
    """Why it failed, or nothing."""
    return "" if code == 0 else f"exit code {code}" if code > 0 else signal.Signals(-code).name


def kill(process):
    """Kills it with all that it has left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_all(jobs, at_once):
    """Runs all of them and names those that failed."""
    failed = []
    pool = ThreadPoolExecutor(at_once)
    try:
        for done in as_completed([pool.submit(ran, *job) for job in jobs]):
            name, seconds, how, output = done.result()
            passed = sum(int(count) for count in re.findall(r"^test result: .*?(\d+) passed", output, re.MULTILINE))
            print(f"{'FAILED' if how else 'passed':7}{name:40}{passed:5} tests {seconds:6.1f} s {how}", flush=True)
            if how:
                failed.append(name)
                print(output, flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            kill(process)
    return failed


def stop(number, _frame):
    """Ends as if interrupted, so that nothing is left behind."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", action="append", default=[], help="a command to run along with the binaries")
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="how many run at a time")
    arguments, options = parser.parse_known_args()
    signal.signal(signal.SIGTERM, stop)

    here = Path.cwd()
    jobs = sorted(built(options), key=longest_first)
    if not jobs:
        sys.exit("there are no tests")
    # Nothing is added for cargo, which builds some crates anew if it is told of another folder.
    beside = [("documentation", [*CARGO, "test", "--doc", *options], here, {})]
    beside += [(text, shlex.split(text), here, {}) for text in arguments.beside]
    jobs[1:1] = beside
    failed = run_all(jobs, arguments.at_once)
    if failed:
        sys.exit(f"failed: {', '.join(sorted(failed))}")


if __name__ == "__main__":
    main()
