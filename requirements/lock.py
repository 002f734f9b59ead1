"""Write the pins of every requirement set from what is installed beside this interpreter.

    make lock        (after changing dependencies in pyproject.toml and installing them)

`core.txt` is what a running bookie needs, `test.txt` adds what the tests need, `dev.txt` what the
checks need, `docs.txt` what the site of documents needs, and `spark.txt` what Spark needs. Each
lists only what the sets before it do not. `build.txt` is what installs the package itself. Nothing
is resolved here: the environment is taken as it is, and it must be complete.
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent


def closure(requirements: list[str]) -> dict[str, str]:
    """Distribution name → version for the requirements and all that they require.

    What is required on some kinds of machine only keeps that condition after its version.
    """
    pins: dict[str, str] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in (*requirement.extras, "")
        ):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        installed = metadata.distribution(name)
        if not requirement.specifier.contains(installed.version, prereleases=True):
            raise SystemExit(f"{name} {installed.version} is installed, but {requirement} is asked")
        if name not in pins:
            machine = "platform_machine" in str(requirement.marker)
            pins[name] = installed.version + (f"; {requirement.marker}" if machine else "")
            waiting += map(Requirement, installed.requires or [])
    return pins


def main() -> None:
    """Write the six files."""
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


if __name__ == "__main__":
    main()
