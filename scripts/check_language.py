#!/usr/bin/env python3
"""Checks comments, messages, names and documentation against the project's language rules.

Prints each violation as `file:line: rule: text` and exits with 1 if there is one. `language_allowed.txt` beside this script
lists exact phrases that are allowed, one per line; an entry that is a single identifier allows this name in code, and no
word in prose. Arguments limit the check to files or folders.
"""

import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED_FILE = pathlib.Path(__file__).resolve().parent / "language_allowed.txt"
GENERATED = ("/generated/", "docs/slidegate.schema.json", "Cargo.lock", "LICENSE", "language_allowed")
# Files that contain the words of the rules on purpose.
OWN_FILES = ("scripts/check_language.py", "scripts/test_checks.py")

# Rule 1: the subject of a sentence is a technical noun. Rule 3: the word that the field uses.
PROSE_RULES = {
    "name the actor (client, caller, key, node …)": r"who|whom|whoever|whomever|whose turn|somebody|someone|nobody|"
    r"no one|everybody|everyone|anybody|anyone|those who|one who|the one (?:that|who)",
    "name the thing": r"what (?:is|was|are|were|has|had|have|comes|came|stands|goes|holds)|(?:an?other |each |the )?one that|"
    r"one of one's own|of one's own",
    "give the number or the condition": r"so many|so much|for so long|all that there (?:is|are)",
    "use request, return, report, state": r"asks?|asked|asking|tells?|told|telling|says?|said|saying|hears?|heard|"
    r"(?:give|gives|gave|given|giving) back|(?:know|knows|knew) of",
    "use response, reply, respond, serve": r"(?:un)?answer(?:s|ed|ing)?",
    "use reject, deny, error": r"refus(?:e|es|ed|ing|al|als)",
    "name the owner": r"ours",
    "use the field's noun": r"patience|patient|ears|news|desk|linger|lingers|pulse",
}
PROSE = [(name, re.compile(rf"(?<![\w'-])(?:{words})(?![\w'-])", re.I)) for name, words in PROSE_RULES.items()]

# The same words as parts of identifiers.
NAME_WORDS = set(
    "ask asks asked asking tell tells told telling say says said who whom whoever somebody nobody everybody anybody "
    "patience patient ears news desk book lane pulse linger room door doors doubts hear hears heard "
    "answer answers answered answering unanswered refuse refuses refused refusing refusal refusals ours".split()
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

# Rule 2: an item's first sentence begins with a verb or a noun phrase.
OPENING = re.compile(r"(?:What|Who|Whom|How|Why|Where|When|If|So|And|But|Or|The same|Those|They|It)\b", re.A)

RUST_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*)|(?P<block>/\*.*?\*/)"
    r"|(?P<raw>b?r(?P<hash>#*)\".*?\"(?P=hash))|(?P<string>b?\"(?:\\.|[^\"\\])*\")|(?P<char>b?'(?:\\[^\n]{1,8}?|[^'\\\n])')",
    re.S,
)
LINE_COMMENT = {".lua": "--", ".sql": "--", ".py": "#", ".yaml": "#", ".yml": "#", ".toml": "#", ".sh": "#", ".service": "#"}
LINE_COMMENT |= {".proto": "//", ".js": "//"}
# A value of more than one word, such as an alert's summary.
YAML_VALUE = re.compile(r"^\s*(?:- )?[\w.-]+:\s+(?P<value>[^#\s].* .*)$")
JSON_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
PYTHON_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
CODE_SPAN = re.compile(r"`[^`]*`")
LINK_TARGET = re.compile(r"\]\([^)]*\)")


def files(arguments):
    listed = subprocess.run(["git", "ls-files", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if name not in OWN_FILES and not any(part in name for part in GENERATED) and (ROOT / name).is_file():
            yield name


def rust_parts(text):
    """Yields (line, kind, text) for comments, string literals and code."""
    at = 0
    for token in RUST_TOKEN.finditer(text):
        yield line_of(text, at), "code", text[at : token.start()]
        kind = "prose" if token.lastgroup == "comment" or token["block"] else "char" if token["char"] else "string"
        yield line_of(text, token.start()), kind, token[0]
        at = token.end()
    yield line_of(text, at), "code", text[at:]


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def commented_parts(text, mark):
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(rf"(?:^|\s){re.escape(mark)}(?!!)\s?(.*)", line)
        if found:
            yield number, "prose", found[1]


def markdown_parts(text):
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, "prose", line


def yaml_values(text):
    for number, line in enumerate(text.splitlines(), 1):
        if found := YAML_VALUE.match(re.sub(r"\s#\s.*", "", line)):
            yield number, "string", found["value"]


def json_strings(text):
    for number, line in enumerate(text.splitlines(), 1):
        for found in JSON_STRING.findall(line):
            yield number, "string", found


def python_strings(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in PYTHON_STRINGS:
            yield token.start[0], "string", token.string


def parts(name, text):
    suffix = pathlib.PurePath(name).suffix
    if suffix == ".rs":
        yield from rust_parts(text)
    elif suffix == ".md":
        yield from markdown_parts(text)
    elif suffix in LINE_COMMENT:
        yield from commented_parts(text, LINE_COMMENT[suffix])
        if suffix in (".yaml", ".yml"):
            yield from yaml_values(text)
        elif suffix == ".py":
            yield from python_strings(text)
    elif suffix == ".json":
        yield from json_strings(text)
    elif pathlib.PurePath(name).name in ("Makefile", "Containerfile", "Caddyfile") or suffix in (".conf", ".caddy"):
        yield from commented_parts(text, "#")


def openings(text):
    """Yields the first line of each doc comment."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(//[/!])\s?(.*)", line)
        if found and found[1] != before:
            yield number, found[2]
        before = found[1] if found else ""


def violations(name, text, allowed):
    phrases = [phrase for phrase in allowed if not NAME.fullmatch(phrase)]
    for first, kind, part in parts(name, text):
        if kind == "code":
            for offset, line in enumerate(part.split("\n")):
                for identifier in NAME.findall(line):
                    words = {word.lower() for word in NAME_PART.findall(identifier)}
                    if words & NAME_WORDS and identifier not in allowed:
                        yield first + offset, "use the field's word in names", identifier
        elif kind in ("prose", "string"):
            for offset, line in enumerate(part.split("\n")):
                line = LINK_TARGET.sub("]", CODE_SPAN.sub("`", line))
                for phrase in phrases:
                    line = line.replace(phrase, "")
                for rule, pattern in PROSE:
                    for found in pattern.finditer(line):
                        yield first + offset, rule, found[0] + " … " + line.strip()
    if name.endswith(".rs"):
        for number, line in openings(text):
            if OPENING.match(line) and not any(line.startswith(phrase) for phrase in phrases):
                yield number, "begin with a verb or a noun phrase", line.strip()


def main():
    allowed = []
    if ALLOWED_FILE.exists():
        lines = ALLOWED_FILE.read_text().splitlines()
        allowed = [line for line in lines if line and not line.startswith("#")]
    count = 0
    for name in files(sys.argv[1:]):
        text = (ROOT / name).read_text(errors="replace")
        for line, rule, found in violations(name, text, allowed):
            print(f"{name}:{line}: {rule}: {found[:150]}")
            count += 1
    if count:
        print(f"{count} violations of the language rules; see CONTRIBUTING.md", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
