#!/usr/bin/env python3
"""Checks the licences, names, sources and version requirements of all crates that the workspace depends on.

Reads `cargo metadata`, which lists the crates of all platforms and features. Prints each violation and exits with 1 if
there is one.
"""

import json
import os
import re
import subprocess
import sys

ALLOWED_LICENCES = {
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "Unicode-3.0",
    "Zlib",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
}
# rustls is the only TLS stack.
BANNED_CRATES = {"openssl-sys", "native-tls"}
ALLOWED_SOURCES = {"registry+https://github.com/rust-lang/crates.io-index"}

TOKEN = re.compile(r"\(|\)|[^\s()]+")


def is_allowed(expression):
    """Evaluates an SPDX expression: an `OR` needs one allowed side, an `AND` both. Old crates write `/` for `OR`."""
    tokens = TOKEN.findall(expression.replace("/", " OR "))

    def either():
        allowed = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            allowed = both() or allowed
        return allowed

    def both():
        allowed = licence()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            allowed = licence() and allowed
        return allowed

    def licence():
        name = tokens.pop(0)
        if name == "(":
            allowed = either()
            assert tokens.pop(0) == ")"
            return allowed
        if tokens and tokens[0] == "WITH":
            name = f"{name} WITH {tokens[1]}"
            del tokens[:2]
        return name in ALLOWED_LICENCES

    try:
        return either() and not tokens
    except (IndexError, AssertionError):
        return False


def violations(metadata):
    members = set(metadata["workspace_members"])
    for package in metadata["packages"]:
        crate = f"{package['name']} {package['version']}"
        if not is_allowed(package["license"] or ""):
            yield f"{crate}: licence {package['license']!r} is not allowed"
        if package["name"] in BANNED_CRATES:
            yield f"{crate}: the crate is banned"
        if package["id"] not in members and package["source"] not in ALLOWED_SOURCES:
            yield f"{crate}: source {package['source']} is not allowed"
        if package["id"] in members:
            for dependency in package["dependencies"]:
                if dependency["req"] == "*" and dependency.get("path") is None:
                    yield f"{crate}: any version of {dependency['name']} is accepted"


def check_of_the_checks():
    """Panics unless each kind of violation is found."""
    assert is_allowed("MIT") and is_allowed("GPL-3.0 OR MIT") and is_allowed("MIT/GPL-3.0")
    assert is_allowed("(GPL-2.0 OR MIT) AND Zlib") and is_allowed("Apache-2.0 WITH LLVM-exception OR GPL-2.0")
    for rejected in ("", "GPL-3.0", "MIT AND GPL-3.0", "MIT AND", "(MIT", "MIT Zlib", "MIT WITH LLVM-exception"):
        assert not is_allowed(rejected), rejected
    source = next(iter(ALLOWED_SOURCES))
    good = {"name": "a", "version": "1.0.0", "id": "a", "license": "MIT", "source": source, "dependencies": []}
    own = good | {"id": "own", "source": None, "dependencies": [{"name": "b", "req": "*"}]}
    for bad in (good | {"license": None}, good | {"name": "native-tls"}, good | {"source": "git+https://example"}, own):
        assert len(list(violations({"workspace_members": ["own"], "packages": [good, bad]}))) == 1, bad


def main():
    check_of_the_checks()
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--format-version=1", "--locked", "--all-features"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = list(violations(metadata))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
