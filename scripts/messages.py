#!/usr/bin/env python3
"""Checks that the source has each message that docs/TROUBLESHOOTING.md quotes.

A quotation is the text in backquotes of a column "message". `...` and words in capitals, as ID or PATH, stand for anything.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/TROUBLESHOOTING.md"
# A word in capitals, which a program fills in; abbreviations stay. A message may be joined of several at a colon.
FILLED_IN = re.compile(r"\.\.\.|: |\b(?!DHT\b|JSON\b|HTTP\b|URL\b)[A-Z]+\b")


def source():
    """The texts of all programs as one, with the line breaks that Rust leaves out of a string."""
    files = subprocess.run(["git", "ls-files", "*.rs", "*.js"], cwd=ROOT, capture_output=True, text=True, check=True)
    text = "\n".join((ROOT / name).read_text() for name in files.stdout.split() if "/tests/" not in name)
    return re.sub(r"\\\n\s*", "", text).replace('\\"', '"')


def quotations(page):
    """Each quoted message with the number of its line."""
    column = None
    for number, line in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            column = None
        elif column is None:
            column = cells.index("message") if "message" in cells else -1
        elif 0 <= column < len(cells):
            yield from ((number, text) for text in re.findall(r"`([^`]+)`", cells[column]))


def main():
    text, missing = source(), []
    for number, quotation in quotations((ROOT / PAGE).read_text()):
        parts = [part.strip(" ;") for part in FILLED_IN.split(quotation)]
        if not all(part in text for part in parts if len(part) > 2):
            missing.append(f"{PAGE}:{number}: no program says: {quotation}")
    print("\n".join(missing) or "messages: each quoted message is in the source")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
