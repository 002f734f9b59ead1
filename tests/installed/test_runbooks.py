"""The runbooks, typed as they are printed, on four bookies to which what they are about happens."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed.environments import ROOT, install_into
from tests.installed.machines import Machines, Operator
from tests.installed.terminal import open_terminal

PAGE = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
BOOKIES = ("b1", "b2", "b3", "b4")

LEDGERS = """\
import asyncio, os
from bookie import connect

async def main():
    async with connect(os.environ["BOOKIE_METADATA"]) as bk:
        for _ in range(9):
            async with bk.create_ledger(ensemble_size=3, write_quorum_size=3) as writer:
                await writer.append_many([b"entry"] * 10)

asyncio.run(main())
"""


@pytest.fixture(name="operator")
def _operator(with_spark: Path, wheel: Path, tmp_path: Path) -> Iterator[Operator]:
    """Four bookies that run, nine ledgers, and somebody who can type."""
    machines = Machines(tmp_path, with_spark, BOOKIES)
    with open_terminal(tmp_path, machines.variables) as terminal:
        install = " ".join([*install_into(with_spark), "--no-index", "--no-deps", str(wheel)])
        operator = Operator(machines, PAGE, terminal)
        operator.places |= {
            "/var/tmp/audit": f"{tmp_path}/audit",
            "/etc/bookie/security": f"{tmp_path}/security",
            "/opt/bookie/bin/pip install bookie-NEW.whl": install,
            "/opt/bookie/bin/pip install bookie-OLD.whl": install,
        }
        operator.run(f"bookie cluster init --metadata {machines.uri}")
        for name in BOOKIES:
            operator.go_to(name)
            operator.run("systemctl start bookie")
        (tmp_path / "ledgers.py").write_text(LEDGERS, encoding="utf-8")
        operator.run(f"BOOKIE_METADATA={machines.uri} python ledgers.py")
        yield operator
        print(machines.logged())


@pytest.mark.timeout(1800)
def test_every_runbook(operator: Operator) -> None:
    """One after the other; each finds what it is about."""
    operator.all_of("")
    bookies_come_and_go(operator)
    everyday(operator)
    the_store_comes_from_a_backup(operator)
    planned_work(operator)
    assert operator.done == operator.sections.keys()


def bookies_come_and_go(operator: Operator) -> None:
    """A bookie is killed while a ledger is written, then its disk is lost, then it is repaired."""
    machines = operator.machines
    words = "--ensemble 4 --write-quorum 4 --ack-quorum 2"
    ledger_id = operator.run(f"bookie ledger create {words}").split()[-1]
    os.kill(int((machines.home / "b2" / "pid").read_text()), signal.SIGKILL)
    operator.run(f"seq 100 | bookie ledger append {ledger_id}")
    said = operator.all_of("A bookie is down")
    assert re.search(r"enabled +yes", said["bookie repair status"])
    operator.run("until bookie node check b2; do sleep 1; done")
    operator.run(f"bookie ledger repair {ledger_id}")

    for entry, _ in operator.follow("A lost disk or bookie"):
        if "systemctl stop" in entry.command:
            machines.empty("b2")
    operator.all_of("Missing entries, doubt and limbo")
    operator.run("until bookie node check b2; do sleep 1; done")
    assert "no ledger lacks copies" in operator.run("bookie repair list")
    operator.all_of("Copies do not come back")
    operator.all_of("Damaged entries")


def everyday(operator: Operator) -> None:
    """A disk is as good as full; what only looks around is typed on a healthy cluster."""
    low = "limits.disk_usage_max=0.0002 limits.disk_usage_low_watermark=0.0001"
    operator.run(f"bookie cluster settings set {low}")
    operator.run("until bookie node info b2 | grep -q 'disk usage'; do :; done")
    for entry, shown in operator.follow("A full disk"):
        if entry.command.startswith("bookie node info"):
            assert re.search(r"read only +yes", shown)
            assert re.search(r"read only reasons +disk usage", shown)
        if "settings set" in entry.command:
            operator.run("until bookie node info b2 | grep -q 'read only *no'; do :; done")
    for section in (
        "Too few bookies take entries",
        "The metadata store is away",
        "A slow disk or processor",
        "Checks that do not finish",
    ):
        operator.all_of(section)
    said = operator.all_of("A bookie is not registered")
    assert '"ready": true' in said["curl http://127.0.0.1:8000/readyz"]
    assert "b4" in said["bookie metadata ls /available/readwrite"]
    said = operator.all_of("Open files run out")
    assert "process_max_fds" in said["curl -s http://127.0.0.1:8000/metrics | grep _fds"]
    operator.all_of("Too many connections")
    operator.all_of("Errors")
    made = operator.places["/etc/bookie/security"]
    operator.run(f"bookie security init {made}")
    operator.run(f"bookie security issue {made} b2 --host b2.example")
    assert (
        "b2.example"
        in operator.all_of("A certificate expires")["bookie security show /etc/bookie/security"]
    )


def the_store_comes_from_a_backup(operator: Operator) -> None:
    """What the table says is lost is lost; ids are not used again."""
    # On all four, so that the bookie of the examples has each.
    create = "bookie ledger create --ensemble 4 --write-quorum 4 --ack-quorum 2"
    closed_later = operator.run(create).split()[-1]
    deleted_later, created_later = operator.run(create).split()[-1], ""
    operator.run(f"seq 10 | bookie ledger append {deleted_later}")
    for entry, shown in operator.follow("The metadata store comes from a backup"):
        if "metadata export" in entry.command:
            operator.run(f"seq 5 | bookie ledger append {closed_later}")
            operator.run(f"bookie ledger delete {deleted_later} --yes")
            created_later = operator.run(create).split()[-1]
            operator.run(f"seq 5 | bookie ledger append {created_later}")
            operator.run("until bookie node info b2 | grep -q 'deleted ledgers *[1-9]'; do :; done")
        if "systemctl stop" in entry.command:
            shutil.rmtree(operator.machines.home / "metadata")
        if "systemctl start" in entry.command:
            found = "went back in time"
            operator.run(f"until bookie node info b2 | grep -q '{found}'; do :; done")
        if "cluster health" in entry.command:
            assert f"(ledger {deleted_later})" in shown
            # A bookie that looks for its entries is in doubt; the check that is typed next ends it.
            recovered = operator.run(f"bookie ledger recover {closed_later}")
            assert "last entry id  4" in recovered
            operator.run(f"bookie ledger delete {deleted_later} --yes")
    operator.run(f"bookie ledger show {created_later}   # exit status 1")
    operator.run("bookie cluster health")
    assert int(operator.run("bookie ledger create").split()[-1]) >= 1_000_000_100

    operator.run("until bookie node info b2 | grep -q 'waiting ledgers *[1-9]'; do :; done")
    said = operator.all_of("Ledgers that nobody deleted")
    assert re.search(r"undeleted ledgers +[1-9]", said["bookie node gc b2 --undelete"])


def planned_work(operator: Operator) -> None:
    """A restart, an upgrade, a downgrade that is refused, and a bookie that goes."""
    operator.all_of("Restart the bookies")
    operator.all_of("Upgrade")
    cookie = operator.machines.directories("b2")["ledgers_dir"] / "COOKIE"
    own = ""
    for entry, shown in operator.follow("Downgrade"):
        if "pip install" in entry.command:
            own = cookie.read_text()
            cookie.write_text(own.replace(" 1\n", " 2\n", 1))  # as a newer version's
        if "systemctl start" in entry.command:
            assert "was written by a newer version" in shown
            cookie.write_text(own)
            operator.run("systemctl start bookie")
    # No ledger may be as wide as the cluster, or open.
    for line in operator.run("bookie ledger list").splitlines()[1:]:
        ledger_id, state, ensemble, *_ = line.split()
        if state != "CLOSED":
            operator.run(f"bookie ledger recover {ledger_id}")
        if ensemble == "4":
            operator.run(f"bookie ledger delete {ledger_id} --yes")
    for entry, shown in operator.follow("Remove a bookie", bookie="b4"):
        if "asks" in entry.command:
            operator.run(
                "until bookie ledger list --bookie b4 | grep 'no ledger'; do sleep 1; done"
            )
        if "--wait" in entry.command:
            assert "bookie b4 has left the cluster" in shown
        if "cluster bookies" in entry.command:
            assert "b4" not in shown
