#!/usr/bin/env python3
"""Compares the list of crates in ARCHITECTURE.md with the manifests.

  scripts/crates.py           exit code 1 where the list is not true, or a crate has no row in the table
  scripts/crates.py --write   writes the list anew

The list is the code block after the line "Each crate with the crates that it uses". A crate comes after all that it
uses. Dependencies of tests are left out.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path("ARCHITECTURE.md")
BLOCK = re.compile(r"(Each crate with the crates that it uses[^\n]*\n\n```\n)(.*?)(```\n)", re.DOTALL)


def crates():
    """The folders of the crates, each with the folders of the crates that it uses."""
    output = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"], check=True, capture_output=True, text=True
    ).stdout
    packages = json.loads(output)["packages"]
    root = Path.cwd()
    folders = {package["name"]: str(Path(package["manifest_path"]).parent.relative_to(root)) for package in packages}
    return {
        folders[package["name"]]: sorted(
            {folders[uses["name"]] for uses in package["dependencies"] if uses["kind"] is None and uses["name"] in folders}
        )
        for package in packages
    }


def listing(graph):
    lines, done = [], set()
    width = max(map(len, graph)) + 3
    while len(done) < len(graph):
        ready = sorted(folder for folder in graph if folder not in done and done.issuperset(graph[folder]))
        if not ready:
            sys.exit("error: crates use each other in a circle")
        lines += [f"{folder:<{width}}{', '.join(graph[folder])}".rstrip() for folder in ready]
        done.update(ready)
    return "\n".join(lines) + "\n"


def main():
    graph, text = crates(), PAGE.read_text()
    found = BLOCK.search(text)
    if not found:
        sys.exit(f"error: {PAGE} has no list of crates")
    if "--write" in sys.argv:
        PAGE.write_text(text[: found.start(2)] + listing(graph) + text[found.end(2) :])
        return
    if found[2] != listing(graph):
        sys.exit(f"error: the list of crates in {PAGE} is not true: run scripts/crates.py --write")
    missing = [folder for folder in graph if f"| `{folder}/` |" not in text]
    if missing:
        sys.exit(f"error: {PAGE} has no row for {', '.join(missing)}")
    print(f"{len(graph)} crates, as in {PAGE}")


if __name__ == "__main__":
    main()
