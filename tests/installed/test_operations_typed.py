"""The examples of the page for operators, typed as they are printed, from an empty machine on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed.environments import ROOT
from tests.installed.machines import Machines, Operator
from tests.installed.terminal import open_terminal

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BOOKIES = ("b1", "b2", "b3")


@pytest.fixture(name="operator")
def _operator(plain: Path, tmp_path: Path) -> Iterator[Operator]:
    """Machines on which nothing runs, and no cluster."""
    machines = Machines(tmp_path, plain, BOOKIES)
    with open_terminal(tmp_path, machines.variables) as terminal:
        operator = Operator(machines, PAGE, terminal)
        operator.places |= {
            "local:///var/lib/bookie/metadata": machines.uri,
            "--set bookie.id=b1": " ".join(["--set bookie.id=b1", *settings_of_b1(machines)]),
        }
        yield operator


def settings_of_b1(machines: Machines) -> list[str]:
    """Flags for the directories and ports that others of this machine do not use."""
    text = (machines.home / "b1" / "bookie.toml").read_text(encoding="utf-8")
    found = []
    for part in text.removeprefix("[").split("\n["):
        section, _, lines = part.partition("]\n")
        if section in ("listen", "http", "storage"):
            found += [f"--set {section}.{line.replace(' = ', '=')}" for line in lines.splitlines()]
    return found


@pytest.mark.timeout(1800)
def test_the_examples_for_operators(operator: Operator) -> None:
    """One bookie, then what all share, then three of them; every section with an example."""
    machines = operator.machines
    for entry, shown in operator.follow("One bookie", bookie="b1"):
        if "config default" in entry.command:
            page = machines.home / "bookie.toml"
            assert "#id = " in page.read_text(encoding="utf-8")
            page.write_text((machines.home / "b1" / "bookie.toml").read_text(encoding="utf-8"))
        if "bookie serve" in entry.command:
            assert '"event": "stopped"' in shown

    said = operator.all_of("Settings", bookie="b1")
    (effective,) = (shown for command, shown in said.items() if "config show" in command)
    assert effective.count("cluster setting storage.scrub_bytes_per_second") == 1

    for name in BOOKIES:
        operator.go_to(name)
        operator.run("systemctl start bookie")
    operator.run("bookie ledger create")
    assert operator.all_of("Where copies stand", bookie="b1")
    operator.all_of("Rates", bookie="b1")
    said = operator.all_of("Namespaces of logs", bookie="b1")
    assert "quota_bytes" in said["bookie namespace show mail"]
    (line,) = re.findall(r"^17 3 .*$", operator.sections["Logs"], re.MULTILINE)
    assert line.endswith(" /opt/bookie/bin/bookie log sweep")
    operator.run("bookie log sweep")
    (shown,) = operator.all_of("Watching a bookie", bookie="b1").values()
    assert '"read_only": true' in shown

    with_examples = {name for name, text in operator.sections.items() if "```console" in text}
    assert operator.done == with_examples
