"""Every name that a user may have written down, as lines of ``public_names.txt``: kind, then name.

A name in that file is a promise: programs, scripts, dashboards and settings files contain it. When
a name is added, or goes on purpose, write the file anew::

    python -m tests.public_names
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from typer.core import TyperGroup
from typer.main import get_command

from bookie.cli.app import GROUPS
from bookie.config import Settings
from bookie.config.load import section_type
from bookie.telemetry import Metrics

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".txt")
COMMAND = "python -m tests.public_names"

MODULES = ("bookie", "bookie.api", "bookie.errors", "bookie.sync", "bookie.testing")
"""The public modules that need no extra. A member of a class is a name, too."""

SPARK = ROOT / "bookie/spark/__init__.py"
"""Read and not imported: Spark is not installed everywhere."""


def public_names() -> list[str]:
    """All lines, sorted by kind and name."""
    return sorted(
        {
            *(f"python {name}" for module in MODULES for name in _names_of(module)),
            *(f"python bookie.spark.{name}" for name in _names_in(SPARK)),
            *(f"entry-point {name}" for name in _entry_points()),
            *(f"metric {name}" for name in _metrics()),
            *(f"setting {name}" for name in _settings()),
            *(f"command {name}" for name in _commands()),
        }
    )


def _names_of(name: str) -> Iterator[str]:
    """The names of a module, and the members of classes whose first home in `MODULES` it is."""
    module = import_module(name)
    for public in _exported(module):
        value = getattr(module, public)
        yield f"{name}.{public}"
        if inspect.isclass(value) and not _is_of_api(name, public):
            yield from (f"{name}.{public}.{member}" for member in _members(value))


def _exported(module: ModuleType) -> list[str]:
    """Names in `__all__`; without one, the public names that the module itself defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def _is_of_api(module: str, name: str) -> bool:
    """True in the root package, which repeats names of `bookie.api`."""
    return module == "bookie" and not name.startswith("_")


def _members(cls: type) -> set[str]:
    """Public members that a class or a base class of ours defines or declares."""
    return {
        member
        for owner in cls.__mro__
        if owner.__module__.partition(".")[0] == "bookie"
        for member in (*vars(owner), *inspect.get_annotations(owner))
        if not member.startswith("_")
    }


def _names_in(path: Path) -> Iterator[str]:
    """The public names that a file imports, defines or assigns at its top level."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names: list[str] = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [ast.unparse(target) for target in targets]
        yield from (name for name in names if not name.startswith("_") and name != "annotations")


def _entry_points() -> Iterator[str]:
    """Scripts, plugins and extras of the distribution."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"scripts": project["scripts"], **project["entry-points"]}
    for group, entries in groups.items():
        yield from (f"{group} {name} = {target}" for name, target in entries.items())
    yield from (f"extra {name}" for name in project["optional-dependencies"])


def _metrics() -> Iterator[str]:
    """Names as `/metrics` declares them; those of the process are not ours."""
    body, _ = Metrics().exposition()
    for line in body.decode().splitlines():
        if line.startswith("# TYPE bookie_"):
            yield line.split()[2]


def _settings() -> Iterator[str]:
    for section in Settings.model_fields:
        yield from (f"{section}.{key}" for key in section_type(section).model_fields)


def _commands() -> Iterator[str]:
    """Every command with the groups that lead to it; a group is a command as well."""
    for name, (module, _) in GROUPS.items():
        yield from _commands_below(f"bookie {name}", get_command(import_module(module).app))


def _commands_below(path: str, command: object) -> Iterator[str]:
    yield path
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _commands_below(f"{path} {name}", inner)


def listed_names() -> list[str]:
    """The lines of the file."""
    return LIST.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    LIST.write_text("".join(f"{line}\n" for line in public_names()), encoding="utf-8")
