#!/usr/bin/env python3
"""Prints the source files of this workspace that one `POST /v1/check` executes at most, with their functions, for each store.

Runs a build of the service with debug information under callgrind, by default the debug build, on a warm connection. A line
counts if it executes at least one instruction per request on average, so lines that run less often than once per request
may be included. Inlined lines belong to the file that contains them. The files are sorted by crate, from the socket to the
arithmetic. An argument names another build of the same sources; a release build shows the instructions per request, but no
files. Needs valgrind and redis-server.
"""

import collections
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES = ["slidegate-server", "slidegate-engine", "slidegate-config", "slidegate", "slidegate-core"]
SOURCE = re.compile(rf"crates/({'|'.join(CRATES)})/src/.*")
FUNCTION = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:const |async )*fn (\w+)")
# Each key stays below the limit of the sample policy.
KEYS, WARM_UP_REQUESTS, REQUESTS = 20, 5, 50


def check(connection, count):
    """Sends `count` requests for each key, one after the other, and returns their number."""
    for number in range(count * KEYS):
        body = f'{{"policy":"api","key":"user:{number % KEYS:02}"}}'
        head = f"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        # In one segment, as most clients send it.
        connection.sendall((head + body).encode())
        response = connection.recv(1 << 16)
        assert b"200 OK" in response and b'"allowed":true' in response and b'"source":"store"' in response, response
    return count * KEYS


def record(binary, store, output):
    """Writes callgrind's record of some requests to `output`, and returns their number."""
    callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}"]
    options = ["--store", store, "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off"]
    server = subprocess.Popen([*callgrind, binary, "serve", *options], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
    switch = lambda state: subprocess.run(["callgrind_control", "-i", state, str(server.pid)], check=True,
                                          capture_output=True)
    try:
        port = next(found[1] for line in server.stdout if (found := re.search(r"http://127.0.0.1:(\d+)", line)))
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            check(connection, WARM_UP_REQUESTS)
            switch("on")
            requests = check(connection, REQUESTS)
            switch("off")
            return requests
    finally:
        server.terminate()
        server.wait()


def executed_lines(record, requests):
    """Returns the instructions per request, and the lines of each file with at least one instruction per request on average."""
    names, counts, file, line, is_call, total = {}, collections.Counter(), "", 0, False, 0
    for text in record.splitlines():
        if found := re.match(r"(?:fl|fi|fe|cfi)=\((\d+)\)(?: (.*))?", text):
            names.setdefault(found[1], found[2])
            if not text.startswith("c"):
                file = names[found[1]]
        elif text.startswith("calls="):
            is_call = True
        elif found := re.match(r"([+-]?)(\d+|\*) (\d+)", text):
            if found[2] != "*":
                line = int(found[1] + found[2]) + (line if found[1] else 0)
            # The line after `calls=` has the cost of the called function.
            total += 0 if is_call else int(found[3])
            if not is_call and line > 0 and (source := SOURCE.search(file)):
                counts[(CRATES.index(source[1]), source[0]), line] += int(found[3])
            is_call = False
    lines = collections.defaultdict(set)
    for (source, line), count in counts.items():
        if count >= requests:
            lines[source].add(line)
    return total // requests, lines


def functions(path, lines):
    """Returns the names of the functions that contain `lines`, in the order of the file."""
    source = enumerate((ROOT / path).read_text().splitlines(), 1)
    starts = [(number, found[1]) for number, text in source if (found := FUNCTION.match(text))]
    holders = {max((start for start in starts if start[0] <= line), default=(0, "derived")) for line in lines}
    return dict.fromkeys(name for _, name in sorted(holders))


def report(binary, store, folder):
    output = pathlib.Path(folder) / "callgrind"
    requests = record(binary, store, output)
    instructions, lines = executed_lines(output.read_text(), requests)
    print(f"{store.split(':')[0]}: {len(lines)} files, {instructions} instructions")
    for (_, path), executed in sorted(lines.items()):
        print(f"  {path}: {', '.join(functions(path, executed))}")


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug/slidegate"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        report(binary, "memory:", folder)
        redis = subprocess.Popen(["redis-server", "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL)
        try:
            # Under callgrind the first call takes longer than the usual budget.
            report(binary, f"redis://127.0.0.1:{port}?budget_ms=30000", folder)
        finally:
            redis.terminate()


if __name__ == "__main__":
    main()
