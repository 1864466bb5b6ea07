#!/usr/bin/env python3
"""Builds the tests and runs their binaries side by side.

`cargo test` runs one binary after the other, and most of these wait for a server half of the time. Prints the result of
a binary when it has ended: one line if it passed, its whole output otherwise.

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
# The slowest binaries start first. Otherwise one of them runs alone at the end.
LONGEST = ["it", "redis_cluster", "redis", "fault_matrix"]
# Several times the duration of the slowest binary on a slow machine.
TIMEOUT_S = 600

running = set()


def build(options):
    """Builds the tests. Yields (name, command, folder, additional environment) for each binary."""
    cargo = [*CARGO, "test", "--no-run", "--message-format=json-render-diagnostics", *options]
    with subprocess.Popen(cargo, stdout=subprocess.PIPE, text=True) as process:
        messages = [json.loads(line) for line in process.stdout if line.startswith("{")]
    if process.returncode:
        sys.exit(process.returncode)
    for message in messages:
        if message["reason"] == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            environment = {"CARGO_MANIFEST_DIR": str(folder)}
            yield f"{folder.name}/{message['target']['name']}", [message["executable"]], folder, environment


def longest_first(job):
    target = job[0].rpartition("/")[2]
    return LONGEST.index(target) if target in LONGEST else len(LONGEST)


def run(name, command, folder, environment):
    """Runs a command. Returns its name, duration, failure and output. The output goes to a file, because an orphan of
    the command would keep a pipe open."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        running.add(process)
        try:
            failure = failure_of(process.wait(TIMEOUT_S))
        except subprocess.TimeoutExpired:
            failure = f"timed out after {TIMEOUT_S} s"
        finally:
            kill(process)
            running.discard(process)
        output.seek(0)
        return name, time.monotonic() - begin, failure, output.read().decode(errors="replace")


def failure_of(code):
    """Returns the reason of a failure, or an empty string for exit code 0."""
    return "" if code == 0 else f"exit code {code}" if code > 0 else signal.Signals(-code).name


def kill(process):
    """Kills a process and its orphans."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_all(jobs, at_once):
    """Runs all jobs and returns the names of those that failed."""
    failed = []
    pool = ThreadPoolExecutor(at_once)
    try:
        for done in as_completed([pool.submit(run, *job) for job in jobs]):
            name, seconds, failure, output = done.result()
            passed = sum(int(count) for count in re.findall(r"^test result: .*?(\d+) passed", output, re.MULTILINE))
            outcome = "FAILED" if failure else "passed"
            print(f"{outcome:7}{name:40}{passed:5} tests {seconds:6.1f} s {failure}", flush=True)
            if failure:
                failed.append(name)
                print(output, flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            kill(process)
    return failed


def stop(number, _frame):
    """Ends like an interrupt, so that no process is left behind."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", action="append", default=[], help="a command to run along with the binaries")
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="number of binaries that run at a time")
    arguments, options = parser.parse_known_args()
    signal.signal(signal.SIGTERM, stop)

    here = Path.cwd()
    jobs = sorted(build(options), key=longest_first)
    if not jobs:
        sys.exit("there are no tests")
    # The environment stays unchanged, because cargo rebuilds some crates for another manifest folder.
    beside = [("documentation", [*CARGO, "test", "--doc", *options], here, {})]
    beside += [(text, shlex.split(text), here, {}) for text in arguments.beside]
    jobs[1:1] = beside
    failed = run_all(jobs, arguments.at_once)
    if failed:
        sys.exit(f"failed: {', '.join(sorted(failed))}")


if __name__ == "__main__":
    main()
