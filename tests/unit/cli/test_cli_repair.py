"""``bookie repair`` on a store of this test."""

from __future__ import annotations

import json
from functools import partial

import pytest

from bookie.cli import app
from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.ledger.copies.departures import _FAILURES
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.underreplicated import (
    NOT_RECOVERED,
    EndedRepair,
    RepairFailure,
    encode_failure,
    encode_history,
)
from bookie.metadata.store import MetadataStore
from tests.unit.cli.cli_store import new_uri, on

Said = pytest.CaptureFixture[str]


@pytest.fixture
def uri(uri: str) -> str:
    """A cluster in a store that the environment names."""
    on(uri, initialize_cluster)
    return uri


def _keep(uri: str, worker: str, value: bytes) -> None:
    on(uri, lambda store: store.put(f"{keys.REPAIR_HISTORY}/{worker}", value))


async def _mark(ledger_id: int, store: MetadataStore) -> None:
    await UnderreplicationManager(store).mark(ledger_id, ["b1"])


async def _put(key: str, value: bytes, store: MetadataStore) -> None:
    await store.put(key, value)


def _repairs(first: int, count: int) -> bytes:
    return encode_history(
        EndedRepair(one, "repaired", 3, 300, 1.5, "", one * 1000)
        for one in range(first, first + count)
    )


def test_the_history_of_all_workers_is_in_order(uri: str, capsys: Said) -> None:
    assert app.run(["repair", "history"]) == 0
    assert capsys.readouterr().out == "no repair has ended yet\n"
    _keep(uri, "b1", _repairs(1, 30))
    _keep(uri, "host:7", _repairs(15, 1))
    assert app.run(["repair", "history", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["ledger_id"] for row in rows] == [*range(30, 15, -1), 15, 15, 14, 13, 12]
    assert rows[0] == {
        "ended": "1970-01-01T00:00:30+00:00",
        "ledger_id": 30,
        "worker": "b1",
        "outcome": "repaired",
        "entries": 3,
        "bytes": 300,
        "seconds": 1.5,
        "detail": "",
    }
    assert app.run(["repair", "history", "--limit", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert app.run(["repair", "history", "--limit", "0"]) == 2


def test_a_damaged_history_is_named_and_hides_no_other(uri: str, capsys: Said) -> None:
    _keep(uri, "b1", _repairs(1, 1))
    _keep(uri, "b2", b"damaged")
    assert app.run(["repair", "history"]) == 1
    said = capsys.readouterr()
    assert "b1" in said.out
    assert said.err == "bookie: not listed, because their records are damaged: b2\n"


def test_a_damaged_lock_leaves_its_ledger_in_the_list(uri: str, capsys: Said) -> None:
    """It may be of a newer version, whose worker is at work; the other rows stay as they are."""
    for ledger_id in (7, 8):
        on(uri, partial(_mark, ledger_id))
    failed = encode_failure(RepairFailure(9, NOT_RECOVERED, "nobody answers", 1, 1000))
    on(uri, lambda store: store.put(_FAILURES.key(9), failed))
    for ledger_id in (7, 9):
        lock = f"{keys.REPAIR_LOCKS}/{ledger_id:019}"
        on(uri, partial(_put, lock, b"damaged"))
    assert app.run(["repair", "list", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["ledger_id"], row["worker"]) for row in rows] == [
        (7, "unknown: its lock cannot be read"),
        (8, ""),
        (9, "unknown: its lock cannot be read"),
    ]
    assert app.run(["repair", "list"]) == 0
    assert "its lock cannot be read" in capsys.readouterr().out


def test_a_store_without_a_cluster_has_no_history(
    monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setenv("BOOKIE_METADATA", new_uri())
    assert app.run(["repair", "history"]) == 1
    assert "no repair" not in capsys.readouterr().out
