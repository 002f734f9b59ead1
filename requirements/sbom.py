"""Write a bill of materials: the package, and every distribution that is pinned for it.

    python requirements/sbom.py dist/bookie-0.1.0.cdx.json [dist/bookie-0.1.0-py3-none-any.whl]

The format is CycloneDX 1.6 in JSON. The scope of a component says who needs it: a running bookie
(`required`), Spark (`optional`), or only builds, tests and checks (`excluded`). Files and hashes
are those of `archives.json`: the ones that pip took on the machine where `make lock` ran. A machine
of another kind takes other files of the same versions. The index is not asked, and nothing is
installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent

SCOPES = {
    "core": ComponentScope.REQUIRED,
    "spark": ComponentScope.OPTIONAL,
    "build": ComponentScope.EXCLUDED,
    "test": ComponentScope.EXCLUDED,
    "dev": ComponentScope.EXCLUDED,
    "docs": ComponentScope.EXCLUDED,
}
"""Set of requirements → the scope of what it lists; the first set that names it decides."""


@dataclass(frozen=True)
class Archive:
    """What `archives.json` says about one pin."""

    version: str
    file: str
    sha256: str
    licence: str
    requires: tuple[str, ...]


def pinned(folder: Path, name: str) -> dict[str, str]:
    """Distribution → version of one set."""
    lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    plain = (line.partition(";")[0].partition("==") for line in lines if line[:1] != "#")
    return {name: version.strip() for name, _, version in plain}


def archives(folder: Path) -> dict[str, Archive]:
    """Distribution → its archive. Raise `SystemExit` unless they are those of the pins."""
    rows = json.loads((folder / "archives.json").read_text(encoding="utf-8"))
    found = {
        name: Archive(**{**row, "requires": tuple(row["requires"])}) for name, row in rows.items()
    }
    pins = {name: version for of in SCOPES for name, version in pinned(folder, of).items()}
    if {name: archive.version for name, archive in found.items()} != pins:
        raise SystemExit("requirements/archives.json is not about the pins: run `make lock`")
    return found


def component(name: str, archive: Archive, scope: ComponentScope, sets: list[str]) -> Component:
    """One distribution."""
    url = PackageURL("pypi", None, name, archive.version, {"file_name": archive.file})
    licences = [LicenseFactory().make_from_string(archive.licence)] if archive.licence else []
    return Component(
        name=name,
        version=archive.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={archive.version}",
        purl=url,
        scope=scope,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=archive.sha256)],
        licenses=licences,
        properties=[Property(name="bookie:requirements", value=",".join(sets))],
    )


def product(project: dict[str, object], wheel: Path | None) -> Component:
    """The package itself, with the hash of its wheel if there is one."""
    name, version = str(project["name"]), str(project["version"])
    hashes = []
    if wheel is not None:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        hashes.append(HashType(alg=HashAlgorithm.SHA_256, content=digest))
    return Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"{name}=={version}",
        description=str(project["description"]),
        licenses=[LicenseFactory().make_from_string(str(project["license"]))],
        hashes=hashes,
    )


def bill(folder: Path, wheel: Path | None = None) -> Bom:
    """The bill of materials of the pins in a folder."""
    text = (folder.parent / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    sets = {of: pinned(folder, of) for of in SCOPES}
    known = archives(folder)
    made: dict[str, Component] = {}
    for name, archive in known.items():
        within = [of for of in SCOPES if name in sets[of]]
        made[name] = component(name, archive, SCOPES[within[0]], within)

    whole = Bom(components=made.values())
    whole.metadata.component = product(project, wheel)
    asked = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    direct = {re.sub(r"[-_.]+", "-", Requirement(line).name).lower() for line in asked}
    whole.register_dependency(whole.metadata.component, [made[name] for name in sorted(direct)])
    for name, archive in known.items():
        whole.register_dependency(made[name], [made[needed] for needed in archive.requires])
    return whole


def main(words: list[str]) -> None:
    """Write the file that the first word names; the second one is the wheel."""
    if not 1 <= len(words) <= 2:
        raise SystemExit("usage: sbom.py FILE [WHEEL]")
    wheel = Path(words[1]) if len(words) == 2 else None
    target = Path(words[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    JsonV1Dot6(bill(HERE, wheel)).output_to_file(str(target), allow_overwrite=True, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
