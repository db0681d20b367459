#!/usr/bin/env python3
"""Checks licences, bans and sources of all dependencies against deny.toml, without a network.

  scripts/deny.py

The rules are those of cargo-deny, which reads the same file and knows advisories as well; it takes minutes to compile, so the
test machine has this instead. Exit code 1 and a line for each dependency that breaks a rule.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def is_allowed(expression, allowed):
    """Evaluates an SPDX expression; a slash is an old way to write OR."""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    position = 0

    def term():
        nonlocal position
        word = words[position]
        position += 1
        if word == "(":
            inner = either()
            position += 1
            return inner
        if position < len(words) and words[position] == "WITH":
            word = f"{word} WITH {words[position + 1]}"
            position += 2
        return word in allowed

    def both():
        nonlocal position
        result = term()
        while position < len(words) and words[position] == "AND":
            position += 1
            result = term() and result
        return result

    def either():
        nonlocal position
        result = both()
        while position < len(words) and words[position] == "OR":
            position += 1
            result = both() or result
        return result

    return either()


def main():
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    allowed = set(rules["licenses"]["allow"])
    banned = {ban["name"] for ban in rules["bans"]["deny"]}
    output = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1"], check=True, capture_output=True, cwd=ROOT
    ).stdout
    packages = json.loads(output)["packages"]
    registries = {package["source"] for package in packages if package["source"]}
    broken = [f"packages come from {source}" for source in registries if not source.startswith("registry+")]
    if len(registries) > 1:
        broken.append(f"packages come from {len(registries)} places: {', '.join(sorted(registries))}")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if package["name"] in banned:
            broken.append(f"{name}: deny.toml bans it")
        licence = package["license"]
        if licence is None and package["license_file"] is None:
            broken.append(f"{name}: names no licence")
        elif licence is not None and not is_allowed(licence, allowed):
            broken.append(f"{name}: the licence {licence} is not allowed")
    print(f"{len(packages)} packages: licences, bans and sources checked; advisories need a network (just advisories)")
    for line in broken:
        print(f"  {line}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
