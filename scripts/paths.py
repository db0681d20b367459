#!/usr/bin/env python3
"""Looks whether each file that a page, a comment or a script of this repository names is there.

  scripts/paths.py

Exit code 1 and a line for each name of a file that is not in the repository.
"""

import re
import subprocess
import sys
from pathlib import Path

NAME = re.compile(
    r"\b((?:client|docs|keys|mesh|node|proto|relayer|scripts|testnet|walrus-client)/[\w./-]+\.(?:md|mjs|py|rs|sh|toml))\b"
)
# Files of other projects, and files that programs make.
ELSEWHERE = {"docs/gguf.md", "node/config.toml"}


def main():
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split()
    known = set(listed) | ELSEWHERE
    names, missing = 0, []
    for path in listed:
        if not path.endswith((".md", ".mjs", ".py", ".rs", ".sh", ".toml")) or not Path(path).is_file():
            continue
        for name in set(NAME.findall(Path(path).read_text())):
            names += 1
            # A crate's own pages name its files from its own folder.
            if name not in known and not any(other.endswith(f"/{name}") for other in listed):
                missing.append(f"{path}: {name}")
    print(f"{names} names of files, {len(missing)} not there")
    for line in sorted(missing):
        print(f"  {line}")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
