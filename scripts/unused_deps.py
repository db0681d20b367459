#!/usr/bin/env python3
"""Finds dependencies in the manifests of this workspace that no code names.

  scripts/unused_deps.py

An ordinary dependency must be named in src/, one for tests in src/, tests/, benches/ or examples/. A dependency that is there
for another reason is listed in FOR_FEATURES. Exit code 1 and a line for each unused one.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

# Dependencies that no code of their own crate names, with the reason.
FOR_FEATURES = {
    ("baton-engine", "candle-nn"): "its features for graphics cards must be those of candle-core",
    ("baton-testnet", "baton-engine"): "a test takes in a file of the engine's tests",
    ("baton-node", "gemm"): "turns on AVX-512 in the matrix products of candle",
}


def code(folder, parts):
    """The text of a crate's Rust files, with that of the files they include by `#[path]`."""
    texts = []
    for path in (path for part in parts for path in sorted((folder / part).rglob("*.rs"))):
        texts.append(path.read_text())
        for include in re.findall(r'#\[path = "(.+?)"\]', texts[-1]):
            included = path.parent / include
            files = sorted(included.parent.rglob("*.rs")) if included.name == "mod.rs" else [included]
            texts += [file.read_text() for file in files]
    return "\n".join(texts)


def main():
    output = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1"], check=True, capture_output=True, text=True
    ).stdout
    unused, count = [], 0
    for package in json.loads(output)["packages"]:
        folder = Path(package["manifest_path"]).parent
        for dependency in package["dependencies"]:
            count += 1
            name = dependency["rename"] or dependency["name"]
            parts = ["src"] if dependency["kind"] is None else ["src", "tests", "benches", "examples"]
            if (package["name"], dependency["name"]) in FOR_FEATURES:
                continue
            if not re.search(rf"\b{name.replace('-', '_')}\b", code(folder, parts)):
                unused.append(f"{package['name']}: {name}{'' if dependency['kind'] is None else ' (for tests)'}")
    print(f"{count} dependencies in the manifests, {len(unused)} unused")
    for line in unused:
        print(f"  {line}")
    sys.exit(1 if unused else 0)


if __name__ == "__main__":
    main()
