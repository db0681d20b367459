#!/usr/bin/env python3
"""Counts the top modules of each crate that import each other in a circle.

  scripts/cycles.py           a table; exit code 1 where a crate has more modules in circles than LIMITS allows, or
                              where a module imports one that is not below it (LAYERS)
  scripts/cycles.py --rings   the rings themselves, with the imports that make them

A module imports another where its code outside of tests names it by `crate::`, or by `super::` where that is the crate.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

# Modules in circles that a crate may have: none where it is not named. A number here may only become smaller.
LIMITS = {
    "baton-engine": 2,
}


# Layers of a crate, from the lowest on. A module imports modules of lower layers, and none beside it; those of the
# lowest layer, values without I/O, may import each other.
LAYERS = {
    "baton-gateway": [
        "clock keys memory",
        "http",
        "form",
        "state",
        "models privacy sessions",
        "turns",
        "apis",
        "guard",
        "routes",
        "serve",
    ],
    "baton-cli": [
        "clock failure files options out",
        "args interrupt turn_display",
        "settings",
        "home relayer search words",
        "session",
        "chat",
        "tui",
        "views",
        "account audit configuration doctor grants memory nodes passphrase receipts serve",
        "private_network",
    ],
    "baton-client": [
        "clock clocks error event evidence index_status logprobs stack_wipe timeouts",
        "identities network session",
        "config home",
        "core",
        "proofs",
        "attempt storage",
        "sync",
        "background",
        "restore turn wait",
        "session_handle",
        "client",
        "testkit",
    ],
}


def crates():
    """Name and source folder of each member of the workspace."""
    output = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"], check=True, capture_output=True, text=True
    ).stdout
    for package in json.loads(output)["packages"]:
        yield package["name"], Path(package["manifest_path"]).parent / "src"


def without_tests(code):
    """The code without comments, strings and modules for tests."""
    code = re.sub(r"//[^\n]*", "", code)
    code = re.sub(r'"(?:\\.|[^"\\])*"', '""', code, flags=re.S)
    while found := re.search(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{", code):
        depth, end = 1, found.end()
        while end < len(code) and depth:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        code = code[: found.start()] + code[end:]
    return code


def names_below(code, root):
    """The first names of all paths that begin at `root`, which may open a group."""
    names = set()
    for found in re.finditer(rf"(?<![\w:]){root}::", code):
        rest = code[found.end() :]
        if not rest.startswith("{"):
            names.update(re.findall(r"^\w+", rest))
            continue
        depth, start, end = 0, 1, 0
        for end, letter in enumerate(rest):
            depth += {"{": 1, "}": -1}.get(letter, 0)
            if depth == 0 or (depth == 1 and letter == ","):
                names.update(re.findall(r"^\s*(\w+)", rest[start:end]))
                start = end + 1
            if depth == 0:
                break
    return names


def imports(source):
    """For each top module the other top modules that it names."""
    modules = {path.stem for path in source.glob("*.rs")} - {"lib", "main"}
    graph = {module: set() for module in modules}
    for path in sorted(source.rglob("*.rs")):
        below = path.relative_to(source).with_suffix("").parts
        if below[0] not in modules or "tests" in below:
            continue
        code = without_tests(path.read_text())
        named = names_below(code, "crate") | names_below(code, "::".join(["super"] * len(below)))
        graph[below[0]] |= (named & modules) - {below[0]}
    return graph


def rings(graph):
    """Groups of modules, each of which is reached from every other of its group."""
    def reached(start):
        seen, waiting = set(), [start]
        while waiting:
            for module in graph[waiting.pop()] - seen:
                seen.add(module)
                waiting.append(module)
        return seen

    all_reached = {module: reached(module) for module in graph}
    found = {
        frozenset(other for other in graph if other in all_reached[module] and module in all_reached[other])
        for module in graph
    }
    return sorted((sorted(ring) for ring in found if len(ring) > 1), key=len, reverse=True)


def climbs(graph, layers):
    """The imports that the layers do not allow, and the modules that are in no layer."""
    height = {module: number for number, layer in enumerate(layers) for module in layer.split()}
    yield from (f"{module} is in no layer" for module in sorted(graph.keys() ^ height.keys()))
    for module in sorted(graph.keys() & height.keys()):
        for other in sorted(graph[module]):
            lower = height.get(other, 0) < height[module] or (height[module] == 0 and height.get(other) == 0)
            if not lower:
                yield f"{module} imports {other}, which is not below it"


def main():
    too_many = False
    wrong = []
    print(f"{'crate':<24} {'modules':>7} {'in circles':>10} {'allowed':>7}")
    for name, source in crates():
        graph = imports(source)
        found = rings(graph)
        count, allowed = sum(map(len, found)), LIMITS.get(name, 0)
        too_many |= count > allowed
        wrong += [f"{name}: {text}" for text in climbs(graph, LAYERS[name])] if name in LAYERS else []
        print(f"{name:<24} {len(graph):>7} {count:>10} {allowed:>7}")
        if "--rings" in sys.argv:
            for ring in found:
                for module in ring:
                    print(f"    {module} -> {', '.join(sorted(graph[module] & set(ring)))}")
    if wrong:
        sys.exit("error: layers are broken\n" + "\n".join(wrong))
    if too_many:
        sys.exit("error: a crate has more modules in circles than LIMITS allows; --rings shows them")


if __name__ == "__main__":
    main()
