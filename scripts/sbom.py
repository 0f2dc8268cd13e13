#!/usr/bin/env python3
"""Prints the bill of materials of a program as CycloneDX 1.5: sbom.py PACKAGE [TARGET].

It lists each crate that is compiled into the program or runs while it is built, with its version, licence and hash. It has no
date and no random serial number, so the same Cargo.lock gives the same text. cargo-cyclonedx would take minutes to compile.
"""
import json
import os
import subprocess
import sys
import tomllib


def crates(package, target):
    """Returns the names, versions and licences of a package's crates, the package itself first."""
    words = ["cargo", "tree", "--locked", "--package", package, "--edges", "normal,build", "--prefix", "none"]
    words += ["--format", "{p}|{l}"] + (["--target", target] if target else [])
    # This setting of cargo would add the crates of all other packages of the workspace.
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_RESOLVER_FEATURE_UNIFICATION"}
    lines = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.splitlines()
    found = {}
    for line in filter(None, lines):
        about, licence = line.removesuffix(" (*)").split("|")
        name, version = about.split(" ")[:2]
        found[name, version.removeprefix("v")] = licence.removesuffix(" (*)")
    return found


def main(package, target=None):
    found = crates(package, target)
    with open("Cargo.lock", "rb") as file:
        locked = tomllib.load(file)["package"]
    hashes = {(entry["name"], entry["version"]): entry.get("checksum") for entry in locked}
    components = []
    for (name, version), licence in sorted(found.items()):
        component = {
            "type": "library",
            "bom-ref": f"{name}@{version}",
            "name": name,
            "version": version,
            "licenses": [{"expression": licence.replace("/", " OR ")}],
        }
        if checksum := hashes[name, version]:
            component["purl"] = f"pkg:cargo/{name}@{version}"
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    subject = next(part for part in components if part["name"] == package)
    components.remove(subject)
    subject |= {"type": "application", "name": package.removesuffix("-cli")}
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
    }
    json.dump(bom, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("sbom.py PACKAGE [TARGET]")
    main(*sys.argv[1:])
