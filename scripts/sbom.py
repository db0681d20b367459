#!/usr/bin/env python3
"""Lists the packages of which the four programs of a release are made.

  scripts/sbom.py write --target TRIPLE --sbom FILE --licences FILE
  scripts/sbom.py check FILE

`write` writes a bill of materials (CycloneDX 1.6, JSON), and the licence texts of all packages from elsewhere. The packages
are those that `cargo build` compiles for the target: normal and build dependencies, with the features of the programs. Two
calls on one commit write the same bytes: SOURCE_DATE_EPOCH is the time, and the serial number follows from the content.

`check` validates a bill of materials against the official schema.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("baton-cli", "baton-node", "baton-relayer", "baton-testnet")
LICENCE_FILE = re.compile(r"(?i)(licen[sc]e|copying|copyright|notice|unlicense)")


def cargo(*arguments):
    command = ["cargo", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def compiled(target):
    """The (name, version) of each package that `cargo build` compiles for the programs.

    `cargo metadata` alone names more: it unites the features of all targets and tests.
    """
    programs = [word for program in PROGRAMS for word in ("--package", program)]
    tree = cargo(
        "tree", "--locked", "--edges", "normal,build", "--target", target, "--prefix", "none", "--format", "{p}", *programs
    )
    return {(line.split()[0], line.split()[1][1:]) for line in tree.splitlines() if line.strip()}


def checksums():
    """The SHA-256 of each package from a registry, by (name, version)."""
    sums, block = {}, {}
    for line in [*(ROOT / "Cargo.lock").read_text().splitlines(), "[[package]]"]:
        if line == "[[package]]":
            if "checksum" in block:
                sums[block["name"], block["version"]] = block["checksum"]
            block = {}
        field = re.fullmatch(r'(name|version|checksum) = "(.+)"', line)
        if field:
            block[field[1]] = field[2]
    return sums


def component(package, sums):
    name, version = package["name"], package["version"]
    licence = (package["license"] or "").replace("/", " OR ")
    # Ours are on no registry: the type `cargo` would name somebody else's package.
    kind = "cargo" if package["source"] else "generic"
    checksum = sums.get((name, version))
    return Component(
        type=ComponentType.LIBRARY if package["name"] not in PROGRAMS else ComponentType.APPLICATION,
        name=name,
        version=version,
        bom_ref=f"pkg:{kind}/{name}@{version}",
        purl=PackageURL(type=kind, name=name, version=version),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
    )


def bill(packages, nodes, target, epoch):
    """The bill of materials of these packages."""
    sums = checksums()
    components = {key: component(package, sums) for key, package in packages.items()}
    programs = [key for key, package in packages.items() if package["name"] in PROGRAMS]
    version = packages[programs[0]]["version"]
    whole = Component(
        type=ComponentType.APPLICATION, name="baton", version=version, bom_ref="baton",
        licenses=[LicenseFactory().make_from_string(packages[programs[0]]["license"])],
    )
    used = {
        key: {
            edge["pkg"]
            for edge in nodes[key]["deps"]
            if edge["pkg"] in packages and any(kind["kind"] in (None, "build") for kind in edge["dep_kinds"])
        }
        for key in packages
    }

    def dependency(reference, keys):
        return Dependency(reference.bom_ref, dependencies=[Dependency(components[key].bom_ref) for key in keys])

    content = " ".join([target, str(epoch), *sorted(one.bom_ref.value for one in components.values())])
    return Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, content),
        metadata=BomMetaData(component=whole, timestamp=datetime.fromtimestamp(epoch, timezone.utc)),
        components=components.values(),
        dependencies=[dependency(whole, programs), *(dependency(components[key], used[key]) for key in packages)],
    )


def licence_texts(packages):
    """The licence files of all packages from a registry, each different text once."""
    users = collections.defaultdict(list)
    names = []
    for package in packages.values():
        if not package["source"]:
            continue
        name = f"{package['name']} {package['version']}"
        names.append(f"{name}: {package['license'] or 'see its text'}")
        for file in sorted(Path(package["manifest_path"]).parent.iterdir()):
            if file.is_file() and LICENCE_FILE.match(file.name):
                users[file.read_text(errors="replace").strip()].append(name)
    parts = ["The programs of Baton contain these packages:\n\n" + "\n".join(sorted(names))]
    for text, owners in sorted(users.items(), key=lambda item: sorted(item[1])):
        parts.append("\n".join(sorted(set(owners))) + "\n\n" + text)
    return ("\n\n" + "=" * 80 + "\n\n").join(parts) + "\n"


def write(arguments):
    if "SOURCE_DATE_EPOCH" not in os.environ:
        sys.exit("error: there is no time for the bill: set SOURCE_DATE_EPOCH, as scripts/release.sh does")
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    wanted = compiled(arguments.target)
    metadata = json.loads(
        cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", arguments.target)
    )
    packages = {
        package["id"]: package
        for package in sorted(metadata["packages"], key=lambda package: (package["name"], package["version"]))
        if (package["name"], package["version"]) in wanted
    }
    missing = wanted - {(package["name"], package["version"]) for package in packages.values()}
    if missing:
        sys.exit(f"error: cargo metadata lacks {sorted(missing)}")
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    sbom = JsonV1Dot6(bill(packages, nodes, arguments.target, epoch)).output_as_string(indent=1)
    Path(arguments.sbom).write_text(sbom + "\n")
    Path(arguments.licences).write_text(licence_texts(packages))


def check(arguments):
    text = Path(arguments.file).read_text()
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error:
        sys.exit(f"error: {arguments.file} is no CycloneDX 1.6: {error}")
    components = json.loads(text)["components"]
    without = [one["name"] for one in components if "licenses" not in one]
    hashed = sum("hashes" in one for one in components)
    print(f"{len(components)} packages, {hashed} with a SHA-256, {len(without)} without a licence {' '.join(without)}".rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    writer = commands.add_parser("write", help="write the bill of materials and the licence texts")
    for option in ("--target", "--sbom", "--licences"):
        writer.add_argument(option, required=True)
    writer.set_defaults(run=write)
    checker = commands.add_parser("check", help="validate a bill of materials")
    checker.add_argument("file")
    checker.set_defaults(run=check)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
