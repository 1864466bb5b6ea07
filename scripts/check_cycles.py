#!/usr/bin/env python3
"""Checks that the modules of each crate have no import cycles.

Two modules in the same folder must not depend on each other, directly or through others of that folder; a folder counts with
everything in it. Prints each cycle with an import for each step, and exits with 1 if there is one. Test modules are exempt.
Arguments name the `src` folders to check, by default those of all crates.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
STRING = re.compile(r'r(#+)".*?"\1|"(?:\\.|[^"\\])*"', re.S)
USE = re.compile(r"\b(?:pub(?:\([a-z: ]+\))? )?use ([^;]+);")
PATH = re.compile(r"(?<![\w:])((?:crate|self|super)(?:::\w+)+)")
TESTS = re.compile(r"#\[cfg\((?:all\()?(?:test|loom|slidegate_loom)\b[^\]]*\]\s*(?:mod \w+;|mod \w+ \{.*?\n\}|use [^;]+;)", re.S)


def expand(tree):
    """Yields the paths of a `use` tree, such as `a::{b, c::d}`, without renames."""
    tree = tree.strip()
    opening = tree.find("{")
    if opening < 0:
        yield re.sub(r"\s+as\s+\w+$", "", tree).replace(" ", "")
        return
    prefix, depth, start = tree[:opening], 0, opening + 1
    for at in range(opening, len(tree)):
        depth += {"{": 1, "}": -1}.get(tree[at], 0)
        if (tree[at] == "," and depth == 1) or (tree[at] == "}" and depth == 0):
            if tree[start:at].strip():
                for path in expand(tree[start:at]):
                    yield (prefix + path).replace(" ", "").replace("\n", "")
            start = at + 1


def modules(source):
    """Returns the code of each module, by its path."""
    found = {}
    for file in sorted(source.rglob("*.rs")):
        parts = list(file.relative_to(source).with_suffix("").parts)
        if parts[-1] == "mod" or parts in (["lib"], ["main"]):
            parts.pop()
        if "tests" in parts or "generated" in parts or "model" in parts:
            continue
        code = STRING.sub('""', COMMENT.sub("", file.read_text()))
        found[tuple(parts)] = found.get(tuple(parts), "") + TESTS.sub("", code)
    return found


def absolute(path, module, modules):
    """Returns the segments of a path from the root of the crate; `None` for paths into other crates."""
    segments = path.split("::")
    if segments[0] == "crate":
        return segments[1:]
    base = list(module)
    if (*module, segments[0]) in modules:
        return base + segments
    while segments and segments[0] in ("self", "super"):
        if segments.pop(0) == "super":
            if not base:
                return None
            base.pop()
    return base + segments if len(segments) < len(path.split("::")) else None


class Crate:
    def __init__(self, source):
        self.modules = modules(source)
        self.exports = {}
        for module, code in self.modules.items():
            for tree in re.findall(r"\bpub(?:\([a-z: ]+\))? use ([^;]+);", code):
                for path in expand(tree):
                    if target := absolute(path, module, self.modules):
                        self.exports[(module, target[-1])] = target

    def resolve(self, segments, seen=()):
        """Returns the module that defines an item, through re-exports."""
        module = ()
        for index, segment in enumerate(segments):
            if (*module, segment) in self.modules:
                module = (*module, segment)
                continue
            target = self.exports.get((module, segment))
            if target and tuple(target) not in seen:
                return self.resolve([*target, *segments[index + 1 :]], (*seen, tuple(target)))
            break
        return module

    def imports(self):
        """Yields (module, imported module, path)."""
        for module, code in self.modules.items():
            paths = [path for tree in USE.findall(code) for path in expand(tree)]
            paths += PATH.findall(USE.sub("", code))
            for path in paths:
                if segments := absolute(path, module, self.modules):
                    target = self.resolve(segments)
                    if target != module:
                        yield module, target, path


def cycles(source):
    graphs, examples = {}, {}
    for module, target, path in Crate(source).imports():
        depth = next((i for i, (a, b) in enumerate(zip(module, target)) if a != b), None)
        if depth is None:
            continue
        folder, one, other = module[:depth], module[depth], target[depth]
        graphs.setdefault(folder, {}).setdefault(one, set()).add(other)
        examples.setdefault((folder, one, other), ("::".join(module), path))
    for folder, graph in sorted(graphs.items()):
        for cycle in sorted(components(graph)):
            yield folder, cycle, [
                examples[(folder, one, other)] for one in cycle for other in sorted(graph.get(one, ())) if other in cycle
            ]


def components(graph):
    """Yields the strongly connected components of more than one node."""
    def reachable(start):
        seen, rest = set(), [start]
        while rest:
            for node in graph.get(rest.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    rest.append(node)
        return seen

    reach = {node: reachable(node) for node in graph}
    done = set()
    for node in sorted(graph):
        if node in reach[node] and node not in done:
            component = {other for other in reach[node] if node in reach.get(other, ())}
            done |= component
            yield tuple(sorted(component))


def main():
    sources = [pathlib.Path(name) for name in sys.argv[1:]] or sorted(ROOT.glob("crates/*/src")) + [ROOT / "testkit/src"]
    count = 0
    for source in sources:
        for folder, cycle, imports in cycles(source):
            print(f"{source.parent.name}: {'::'.join(('crate', *folder))}: cycle between {', '.join(cycle)}")
            for module, path in imports:
                print(f"    {module} uses {path}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
