"""Write the pins of every requirement set from what is installed beside this interpreter.

    make lock        (after changing dependencies in pyproject.toml and installing them)

`core.txt` is what a running bookie needs, `test.txt` adds what the tests need, `dev.txt` what the
checks need, `docs.txt` what the site of documents needs, and `spark.txt` what Spark needs. Each
lists only what the sets before it do not. `build.txt` is what installs the package itself. Nothing
is resolved here: the environment is taken as it is, and it must be complete.

`archives.json` says for each pin which file pip fetches on this machine, its SHA-256, its licence,
and what it requires. `sbom.py` makes a bill of materials from it. pip asks its index for the files.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent


SETS = ("core", "test", "dev", "docs", "spark", "build")
UNPINNED = {"pip"}
"""It comes with the environment, and its version follows the interpreter's."""


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirement: Requirement) -> list[Requirement]:
    """What an installed distribution requires here, for the extras that are asked of it."""
    found = map(Requirement, metadata.distribution(requirement.name).requires or [])
    extras = (*requirement.extras, "")
    return [
        needed
        for needed in found
        if canonical(needed.name) not in UNPINNED
        and (
            needed.marker is None
            or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
        )
    ]


def closure(requirements: list[str]) -> dict[str, str]:
    """Distribution name → version for the requirements and all that they require.

    What is required on some kinds of machine only keeps that condition after its version.
    """
    pins: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    waiting = [one for one in waiting if one.marker is None or one.marker.evaluate()]
    while waiting:
        requirement = waiting.pop()
        name = canonical(requirement.name)
        installed = metadata.distribution(name)
        if not requirement.specifier.contains(installed.version, prereleases=True):
            raise SystemExit(f"{name} {installed.version} is installed, but {requirement} is asked")
        if (name, frozenset(requirement.extras)) not in seen:
            seen.add((name, frozenset(requirement.extras)))
            machine = "platform_machine" in str(requirement.marker)
            condition = f"; {requirement.marker}" if machine else ""
            pins.setdefault(name, installed.version + condition)
            waiting += required(requirement)
    return pins


def licence(about: metadata.PackageMetadata) -> str:
    """The licence as its distribution states it: an SPDX expression, a name, or nothing.

    Some put the whole text there. The classifiers are shorter.
    """
    stated = about["License-Expression"] or about["License"] or ""
    if 0 < len(stated) <= 64 and "\n" not in stated and stated != "UNKNOWN":
        return stated
    classifiers = about.get_all("Classifier") or []
    named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    return " and ".join(named)


def archives() -> dict[str, dict[str, object]]:
    """Name of each pin → its version, file, SHA-256, licence, and the pins that it requires."""
    words = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--no-build-isolation"]
    words += [f"--requirement={HERE}/{name}.txt" for name in SETS]
    told = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--quiet", "--report=-"],
        check=True,
        stdout=subprocess.PIPE,
    )
    fetched = json.loads(told.stdout)["install"]
    names = {canonical(one["metadata"]["name"]) for one in fetched}
    found: dict[str, dict[str, object]] = {}
    for one in fetched:
        name = canonical(one["metadata"]["name"])
        found[name] = {
            "version": one["metadata"]["version"],
            "file": one["download_info"]["url"].rpartition("/")[2],
            "sha256": one["download_info"]["archive_info"]["hashes"]["sha256"],
            "licence": licence(metadata.metadata(name)),
            "requires": sorted({canonical(of.name) for of in required(Requirement(name))} & names),
        }
    return dict(sorted(found.items()))


def main() -> None:
    """Write the six files of pins, and the file about their archives."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    known: dict[str, str] = {}
    for name, requirements, text in (
        ("core", project["project"]["dependencies"], "What a running bookie needs."),
        ("test", extras["test"], "What the tests need besides."),
        ("dev", extras["dev"], "What the checks and the code generator need besides."),
        ("docs", extras["docs"], "What the site of documents needs besides."),
        ("spark", extras["spark"], "What the source and the jobs for Spark need besides."),
        ("build", project["build-system"]["requires"], "What installs the package itself."),
    ):
        pins = closure(requirements)
        if name != "build":
            pins = {pin: version for pin, version in pins.items() if pin not in known}
            if name not in ("docs", "spark"):  # neither is installed for the other
                known |= pins
        lines = [f"# {text} Written by requirements/lock.py.\n"]
        lines += [f"{pin}=={version}\n" for pin, version in sorted(pins.items())]
        (HERE / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    about = json.dumps(archives(), indent=1, ensure_ascii=False)
    (HERE / "archives.json").write_text(about + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
