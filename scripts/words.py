#!/usr/bin/env python3
"""Measures the prose of comments and documents: the word "what", and sentences that are too long.

  scripts/words.py                   a table by crate and document; exit code 1 where a limit is broken
  scripts/words.py --show PATH ...   each "what" and each long sentence below these files and folders

A comment's words are those of its `//`, `///` and `//!` lines, without code blocks and tables; code in backticks is one word.
"""

import re
import subprocess
import sys
from pathlib import Path

MAX_WHAT = 2.0  # in 1,000 words
MAX_LONG = 2.0  # per cent of the sentences
LONG = 25  # words


def comment_paragraphs(text):
    """The paragraphs of a Rust file's comments, with the line each begins at."""
    lines, kind_before = [], None
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(//[/!]?)(?!/)\s?(.*)", line)
        kind = found.group(1) if found else None
        if kind != kind_before:
            lines.append((number, ""))
        kind_before = kind
        if found:
            lines.append((number, found.group(2)))
    return paragraphs(lines)


def document_paragraphs(text):
    return paragraphs(list(enumerate(text.splitlines(), 1)))


def paragraphs(lines):
    fenced, begun, words = False, 0, []
    for number, line in [*lines, (0, "")]:
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
            stripped = ""
        is_break = fenced or not stripped or stripped[0] in "|#<"
        is_item = re.match(r"([-*]|\d+\.)\s", stripped)
        if (is_break or is_item) and words:
            yield begun, " ".join(words)
            words = []
        if is_break:
            continue
        if not words:
            begun = number
        words.append(re.sub(r"^([-*>]|\d+\.)\s+", "", stripped))


def sentences(paragraph):
    plain = re.sub(r"`[^`]*`", "code", paragraph)
    plain = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])?", r"\1", plain)
    plain = re.sub(r"https?://\S+", "link", plain)
    plain = re.sub(r"\b(e\.g|i\.e|cf|vs|no|p)\.", r"\1", plain)
    return re.split(r"(?<=[.!?])[)\"'*]*\s+(?=[\"'(*\[A-Z0-9a-z])", plain)


def words_of(sentence):
    return re.findall(r"[A-Za-z0-9][\w'’./-]*", sentence)


class Measure:
    def __init__(self):
        self.words = self.what = self.sentences = self.long = 0

    def add(self, paragraph):
        """Counts a paragraph; returns what to look at in it."""
        found = []
        for sentence in sentences(paragraph):
            words = words_of(sentence)
            if not words:
                continue
            self.words += len(words)
            self.sentences += 1
            what = sum(word.lower() == "what" for word in words)
            self.what += what
            found += [("what", sentence)] * bool(what)
            if len(words) > LONG:
                self.long += 1
                found.append((f"{len(words)} words", sentence))
        return found

    def rates(self):
        return 1000 * self.what / max(self.words, 1), 100 * self.long / max(self.sentences, 1)


def files_below(path):
    """Rust files and documents that git has, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", str(path)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        file = Path(line)
        if file.suffix in (".rs", ".md") and file.exists():
            yield file


def paragraphs_of(file):
    text = file.read_text()
    return comment_paragraphs(text) if file.suffix == ".rs" else document_paragraphs(text)


def show(paths):
    for file in (file for path in paths for file in files_below(Path(path))):
        for line, paragraph in paragraphs_of(file):
            for reason, sentence in Measure().add(paragraph):
                print(f"{file}:{line}: {reason}: {sentence}")


def main():
    if sys.argv[1:2] == ["--show"]:
        return show(sys.argv[2:])
    files = list(files_below(Path(".")))
    folders = {folder for file in files for folder in file.parents if (folder / "Cargo.toml").exists()} - {Path(".")}
    measures = {}
    for file in files:
        owner = max((folder for folder in folders if folder in file.parents), key=lambda folder: len(folder.parts), default=None)
        name = str(owner) if owner and file.suffix == ".rs" else str(file)
        measure = measures.setdefault(name, Measure())
        for _, paragraph in paragraphs_of(file):
            measure.add(paragraph)
    broken = []
    print(f"{'':34} {'words':>7} {'what/1000':>10} {'long %':>7}")
    for name, measure in sorted(measures.items()):
        what, long = measure.rates()
        # One in a short document is no habit.
        is_broken = (what > MAX_WHAT and measure.what > 1) or (long > MAX_LONG and measure.long > 1)
        broken += [name] * is_broken
        print(f"{name:34} {measure.words:7} {what:10.1f} {long:7.1f}{'  over the limit' if is_broken else ''}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
