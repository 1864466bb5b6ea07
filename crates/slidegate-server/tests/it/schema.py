"""Prints for each file whether it is valid under the schema: python3 schema.py SCHEMA FILE…"""

import json
import re
import sys

import jsonschema_rs
import yaml


class Core(yaml.SafeLoader):
    """YAML 1.2, as slidegate and editors read it. PyYAML reads `off` as a boolean and 1:30 as a number."""


Core.yaml_implicit_resolvers = {}
for tag, pattern, first in [
    ("null", r"^(~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    ("float", r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$", list("-+.0123456789")),
    ("merge", r"^<<$", ["<"]),
]:
    Core.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), first)

with open(sys.argv[1]) as file:
    schema = json.load(file)
jsonschema_rs.meta.validate(schema)
validator = jsonschema_rs.Draft202012Validator(schema)
for path in sys.argv[2:]:
    with open(path) as file:
        try:
            data = yaml.load(file, Core)
        except (yaml.YAMLError, TypeError):
            print("unreadable", path)
            continue
    print("valid" if validator.is_valid(data) else "invalid", path)
