#!/usr/bin/env python3
"""Checks the names of types and files: nouns of the field, with one meaning each.

Three rules, over every Rust file that Git knows:

1. No type, trait or alias is called by a bare participle (`Told`, `Found`, `Kept`): such a name tells the history of
   a thing, never the thing.
2. No type, function or file uses the pictures that docs/GLOSSARY.md replaces by terms (door, desk, guest …).
3. Inside one crate, a name of one word that other modules import without its module stands for one type.

`names.py PATH…` checks these paths alone, `--list` prints every finding instead of the first of each rule.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Participles that do not end in "ed".
IRREGULAR = set(
    """begun bought bound broken brought built chosen cut dealt done drawn driven fallen felt forgotten found given gone
    grown heard held hidden kept known laid learnt led left lost made meant met owed paid put read run said seen sent
    shot shown shut sold spent split spoken spread sworn taken thought thrown told torn understood won woken worn
    written""".split()
)
# Nouns that end in "ed".
NOUNS = {"seed", "feed", "speed", "need", "shed", "bed", "embed"}
# Wire objects keep their names (docs/PROTOCOL.md).
WIRE = {"Committed"}
# Pictures; docs/GLOSSARY.md has the terms.
PICTURES = re.compile(
    r"(?:^|_)(?:doors?|desks?|clerks?|guests?|strangers?|newcomers?|keepers?|haste|errands?|untold|step_aside"
    r"|aside|said_again|say_again|says_again|left_out|take_in|takes_in|taken_in)(?:_|$)"
)
DEFINITION = re.compile(
    r"^[ \t]*(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:struct|enum|union|trait|type) ([A-Z]\w*)", re.MULTILINE
)
FUNCTION = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe) )*fn (\w+)", re.MULTILINE)
IMPORT = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? )?use ([^;]+);", re.MULTILINE)
# Associated types of other people's traits.
FOREIGN = {"Error", "Err", "Output", "Item", "Target", "Owned", "Rejection", "Result", "Future"}


def words(name):
    """A name in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def is_participle(name):
    word = words(name)
    if "_" in word or word in NOUNS:
        return False
    return word in IRREGULAR or (word.startswith("un") and word[2:] in IRREGULAR) or word.endswith("ed")


def is_test(path):
    parts = path.split("/")
    return "tests" in parts or "benches" in parts or "examples" in parts or "fuzz" in parts or parts[-1] == "tests.rs"


def without_tests(text):
    """A file's text up to its own module of tests."""
    at = re.search(r"^#\[cfg\((?:all\()?test\b", text, re.MULTILINE)
    return text[: at.start()] if at else text


def crate_of(path, crates):
    return max((crate for crate in crates if path.startswith(crate + "/")), key=len, default="")


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--list"]
    whole = "--list" in sys.argv
    git = subprocess.run(["git", "ls-files", "*.rs", "*Cargo.toml"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = git.stdout.split()
    crates = {str(pathlib.PurePosixPath(path).parent) for path in paths if path.endswith("Cargo.toml")} - {"."}
    sources = {path: (ROOT / path).read_text() for path in paths if path.endswith(".rs") and (ROOT / path).exists()}
    wanted = [path for path in sources if not arguments or any(path.startswith(argument) for argument in arguments)]

    participles, pictures, twice = [], [], []
    for path in wanted:
        text = sources[path]
        if any(PICTURES.search(part.removesuffix(".rs")) for part in path.split("/")):
            pictures.append(path)
        for match in DEFINITION.finditer(text):
            line = text.count("\n", 0, match.start(1)) + 1
            if is_participle(match[1]) and match[1] not in WIRE:
                participles.append(f"{path}:{line} {match[1]}")
            if PICTURES.search(words(match[1])):
                pictures.append(f"{path}:{line} {match[1]}")
        for match in FUNCTION.finditer(text):
            if PICTURES.search(match[1]):
                pictures.append(f"{path}:{text.count(chr(10), 0, match.start(1)) + 1} {match[1]}")

    places = collections.defaultdict(set)
    imports = collections.defaultdict(set)
    for path in wanted:
        if is_test(path):
            continue
        text, crate = without_tests(sources[path]), crate_of(path, crates)
        for match in re.finditer(DEFINITION.pattern.replace("^[ \\t]*", "^"), text, re.MULTILINE):
            if "_" not in words(match[1]):
                places[crate, match[1]].add(path)
        for match in IMPORT.finditer(text):
            for name in re.findall(r"(?<!\w)([A-Z]\w*)(?! as\b)\b", match[1]):
                imports[crate, name].add(path)
    for (crate, name), files in sorted(places.items()):
        if len(files) > 1 and imports[crate, name] and name not in FOREIGN:
            twice.append(f"{crate} {name}: {' '.join(sorted(files))}")

    failed = False
    for rule, findings in (
        ("called by a participle", participles),
        ("called by a picture", pictures),
        ("one name, several types", twice),
    ):
        print(f"{rule}: {len(findings)}")
        failed = failed or bool(findings)
        for finding in findings if whole else findings[:10]:
            print(f"  {finding}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
