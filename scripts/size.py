#!/usr/bin/env python3
"""Counts the tree, and fails where a number is larger than in the table scripts/size.json.

  scripts/size.py            compares; exit code 1 where a number rose
  scripts/size.py --write    writes the table, also where numbers fell
  scripts/size.py --long     lists the functions of more than 70 lines
  scripts/size.py --twice    lists the names that several types have

Examples:
  git add -A && scripts/size.py --write && git add scripts/size.json && git commit
  scripts/size.py --long | head

A line of Rust is code, a comment or blank. Lines of tests are those that names.py takes for tests, and items below
`#[cfg(test)]`; all other numbers leave tests out. Code that helps tests, as client/src/testkit, is code.
"""

import collections
import json
import re
import sys
from pathlib import Path

from names import DEFINITION, crate_of, is_test
from words import files_below

TABLE = Path("scripts/size.json")
LONG = 70
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
    r"""|(?<!\w)[bc]?r(?P<hashes>#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\.[^'\n]*|[^\\'\n])'""",
    re.DOTALL,
)
TEST_ITEM = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")
FUNCTION = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe) )*fn (\w+)", re.MULTILINE)
# A type that is no associated type.
TYPE = re.compile(DEFINITION.pattern.replace("^[ \\t]*", "^"), re.MULTILINE)
OPTIONS = re.compile(r"\boptions! \{\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))? )?struct \w+, ")
ROW = re.compile(r"(?:^|\])\s*(\w+):(?!:)", re.MULTILINE)
JOURNAL = "client/src/session/state/entry.rs"


def masked(text):
    """The text, as long, with blanks for comments and quotation marks for the letters of strings."""
    return TOKEN.sub(lambda token: re.sub(r"\S", " " if token["comment"] else '"', token[0]), text)


def end_of(code, start, ends=";}"):
    """The end of the item at `start`: its first bracket or semicolon of `ends` that is in no bracket."""
    depth = 0
    for found in re.compile(r"[\[\](){};]").finditer(code, start):
        depth += (found[0] in "([{") - (found[0] in ")]}")
        if depth <= 0 and found[0] in ends:
            return found.end()
    return len(code)


def outer(code, start, depth):
    """The item at `start` without the letters that are in more than `depth` brackets."""
    letters, inside = [], 0
    for letter in code[start : end_of(code, start)]:
        inside -= letter in ")]}"
        letters += letter if inside <= depth else ""
        inside += letter in "([{"
    return "".join(letters)


def without_tests(code):
    """Masked code, as long, with blanks for its tests."""
    for found in TEST_ITEM.finditer(code):
        end = end_of(code, found.end())
        code = code[: found.start()] + re.sub(r"\S", " ", code[found.start() : end]) + code[end:]
    return code


def lines(text, code, tested):
    """How many lines of a file are code, tests and comments."""
    counts = collections.Counter()
    for line, masked_line, rest in zip(text.split("\n"), code.split("\n"), tested.split("\n")):
        if rest.strip():
            counts["code"] += 1
        elif masked_line.strip():
            counts["tests"] += 1
        elif line.strip():
            counts["comments"] += 1
    return counts


def long_functions(code):
    """The functions of more than `LONG` lines, from `fn` to the last brace: line, name and length."""
    for found in FUNCTION.finditer(code):
        length = code.count("\n", found.end(), end_of(code, found.end())) + 1
        if length > LONG:
            yield code.count("\n", 0, found.end()) + 1, found[1], length


def variants(code, start):
    """The variants of the enum at `start`, each with the type that it holds."""
    body = re.sub(r"#\[[^\]]*\]", "", outer(code, start, 2)).partition("{")[2]
    return re.findall(r"([A-Z]\w*)\s*(?:\(([^)]*)\)|\{[^}]*\})?\s*[,}]", body)


def journal_kinds(code):
    """How many kinds of entry a session's journal has; a variant that holds an enum stands for that enum's kinds."""
    enums = {found[1]: variants(code, found.start()) for found in re.finditer(r"\benum (\w+) \{", code)}
    groups = (set(re.findall(r"(?<!:)\b[A-Z]\w*", held)) & enums.keys() for _, held in enums["Entry"])
    return sum(sum(len(enums[name]) for name in group) or 1 for group in groups)


def options(text, code):
    """How many options a file has, and the environment names that it reads."""
    count, names = 0, set()
    for found in re.finditer(r"#\[arg(?=\()", code):
        count += bool(re.search(r"\blong\b", code[found.end() : end_of(code, found.end(), ")")]))
    for found in OPTIONS.finditer(code):
        prefix = re.match(r'"(\w*)"', text[found.end() :])[1]
        keys = ROW.findall(outer(code, found.start(), 3))
        count += len(keys)
        names |= {prefix + key.upper() for key in keys}
    literals = (text[found.start() + 1 : found.end() - 1] for found in re.finditer(r'"+', code))
    return count, names | {name for name in literals if re.fullmatch(r"BATON_[A-Z0-9_]*[A-Z0-9]", name)}


def measure(show=()):
    """All numbers by name; prints the findings that `show` names."""
    numbers, types, environment = collections.Counter(), collections.defaultdict(list), set()
    files = [file for file in files_below(Path(".")) if file.name != "CHANGELOG.md"]
    crates = {str(folder) for file in files for folder in file.parents if (folder / "Cargo.toml").exists()} - {"."}
    for file in files:
        text = file.read_text()
        if file.suffix == ".md":
            numbers["words of documents"] += len(text.split())
            continue
        crate = crate_of(str(file), crates)
        code = masked(text)
        tested = re.sub(r"\S", " ", code) if is_test(str(file)) else without_tests(code)
        numbers.update({f"{kind} of {crate}": count for kind, count in lines(text, code, tested).items()})
        for line, name, length in long_functions(tested):
            numbers[f"functions over {LONG} lines"] += 1
            if "--long" in show:
                print(f"{length:5} {file}:{line} {name}")
        for found in TYPE.finditer(tested):
            types[found[1]].append(str(file))
        count, names = options(text, tested)
        numbers["options"] += count
        environment |= names
        for found in re.finditer(r"derive\([^)]*\bSubcommand\b[^{]*?(?=enum)", tested):
            count = len(variants(tested, found.end()))
            numbers["subcommands"] += count
            numbers["subcommands of baton"] += count * (crate == "client/cli")
        if str(file) == JOURNAL:
            numbers["kinds of journal entry"] += journal_kinds(tested)
    twice = {name: files for name, files in types.items() if len(files) > 1}
    for name, files in sorted(twice.items(), key=lambda item: -len(item[1])) if "--twice" in show else ():
        print(f"{len(files):3} {name}: {' '.join(files)}")
    numbers["names of several types"] = len(twice)
    numbers["environment names"] = len(environment)
    numbers["packages in Cargo.lock"] = Path("Cargo.lock").read_text().count("[[package]]")
    return dict(sorted(numbers.items()))


def compare(before, now):
    """The numbers that rose, and those that fell, as lines."""
    changed = [(name, before.get(name, 0), now.get(name, 0)) for name in sorted(before | now)]
    rose = [f"  {name}: from {old:,} to {new:,}" for name, old, new in changed if new > old]
    return rose, [f"  {name}: from {old:,} to {new:,}" for name, old, new in changed if new < old]


def main():
    if unknown := set(sys.argv[1:]) - {"--write", "--long", "--twice"}:
        print(__doc__)
        sys.exit(0 if unknown <= {"--help", "-h"} else 2)
    now = measure(sys.argv[1:])
    if "--write" in sys.argv:
        TABLE.write_text(json.dumps(now, indent=2) + "\n")
    elif len(sys.argv) > 1:
        return
    rose, fell = compare(json.loads(TABLE.read_text()), now)
    totals = {kind: sum(count for name, count in now.items() if name.startswith(kind + " of ")) for kind in ("code", "tests", "comments")}
    print(", ".join(f"{count:,} lines of {kind}" for kind, count in totals.items()))
    if rose:
        sys.exit(
            "error: the tree grew\n" + "\n".join(rose) + "\nMake it smaller elsewhere. Or run scripts/size.py --write, "
            "and say in the same commit's text which promise to users the growth keeps."
        )
    if fell:
        print("smaller than in the table; keep that by scripts/size.py --write\n" + "\n".join(fell))


if __name__ == "__main__":
    main()
