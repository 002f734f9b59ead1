"""Reading a stopped bookie's directories without changing them."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import numpy as np
import pytest

from bookie.cli import app
from bookie.cluster.cookie import Cookie, CookieState, encode_cookie
from bookie.daemon import inspection
from bookie.daemon.inspection import entry_ranges, files_in, inspect_file, opened_index
from bookie.entry.batch import EntryBatch
from bookie.env import open_lmdb
from bookie.errors import ConfigurationError, DirectoryLockedError, FormatError
from bookie.node.engine.files import SealedFile
from bookie.node.engine.format.blocks import (
    BlockHeader,
    FileHeader,
    FileKind,
    body_crc,
    encode_block_header,
    padding,
)
from bookie.node.engine.format.index_rows import LedgerIndexRow, Mark
from bookie.node.engine.format.records import (
    encode_deleted,
    encode_entries_head,
    encode_fence,
    encode_lac,
    encode_ledger,
    encode_limbo,
    encode_link,
)
from bookie.node.engine.index.entry_index import TABLES, CheckpointChange, Index, LedgerChange
from bookie.node.engine.memtable import LocationTable

NONCE = bytes(range(16))


def block(sequence: int, durable_upto: int, records: list[bytes]) -> bytes:
    """One block as a journal writes it."""
    body = b"".join(records)
    crc = body_crc(NONCE, sequence, [body])
    head = encode_block_header(
        NONCE, BlockHeader(sequence, durable_upto, len(body), len(records), crc)
    )
    return head + body + padding(len(head) + len(body), 512)


def entries(ledger_id: int, first: int, count: int, *, recovery: bool = False) -> bytes:
    """An ENTRIES record of `count` packets of 40 bytes."""
    batch = EntryBatch(ledger_id, first, None, np.full(count, 40), bytes(40 * count))
    return encode_entries_head(batch, 0, recovery) + bytes(batch.payload)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal file with two blocks, a hole, and one valid block behind the hole."""
    directory = tmp_path / "journal"
    directory.mkdir()
    path = directory / "00000002.journal"
    content = FileHeader(FileKind.JOURNAL, 2, NONCE, 512).encode()
    content += block(7, 4096, [encode_link(1, NONCE, 9000), encode_ledger(5, b"key")])
    content += block(
        8,
        len(content),
        [
            entries(5, 0, 3),
            entries(5, 3, 1, recovery=True),
            encode_fence(6, b""),
            encode_lac(5, b"x" * 20),
            encode_deleted(6, 1),
            encode_limbo(7, in_limbo=True),
            encode_limbo(7, in_limbo=False),
        ],
    )
    content += bytes(512)
    content += block(9, 4096, [encode_ledger(8, b"")])
    path.write_bytes(content + bytes(4096))
    return path


def test_journal_is_read_to_its_end(journal: Path) -> None:
    """Blocks in order up to the first that does not validate, and the ones behind it counted."""
    summary = inspect_file(journal)
    assert (summary.kind, summary.number, summary.alignment) == ("journal", 2, 512)
    assert [found.sequence for found in summary.blocks] == [7, 8]
    assert summary.entries == 4
    assert summary.end == summary.blocks[-1].end
    assert summary.blocks_beyond == 1


def test_every_record_is_described(journal: Path) -> None:
    """Each record is one line, and no line shows a key."""
    lines = [line for found in inspect_file(journal).blocks for line in found.records]
    assert lines == [
        "LINK after file 1, end 9000",
        "LEDGER ledger 5, with a key",
        "ENTRIES ledger 5, 0…2 (3 entries, 120 bytes)",
        "ENTRIES ledger 5, 3…3 (1 entries, 40 bytes, recovery)",
        "FENCE ledger 6, without a key",
        "LAC ledger 5, 20 bytes",
        "DELETED ledger 6",
        "LIMBO ledger 7",
        "UNLIMBO ledger 7",
    ]


@pytest.mark.parametrize(("option", "rows"), [(None, 1), ("--blocks", 2), ("--records", 9)])
def test_journal_command(
    option: str | None, rows: int, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files, blocks or records, from a file or from its directory."""
    for path in (journal, journal.parent):
        words = ["inspect", "journal", str(path), "-o", "json", *([option] if option else [])]
        assert app.run(words) == 0
        assert len(json.loads(capsys.readouterr().out)) == rows


def test_foreign_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of something else is refused without a traceback."""
    path = tmp_path / "00000001.journal"
    path.write_bytes(lzma.compress(b"something else") * 100)
    with pytest.raises(FormatError):
        inspect_file(path)
    assert app.run(["inspect", "journal", str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_files_are_found_by_kind_and_number(tmp_path: Path) -> None:
    """Entry logs are found in the directory itself or in its ``logs``, in order of number."""
    (tmp_path / "logs").mkdir()
    for name in ("00000010.log", "00000009.log", "00000011.log.tmp", "README"):
        (tmp_path / "logs" / name).touch()
    names = [path.name for path in files_in(tmp_path, FileKind.ENTRY_LOG)]
    assert names == ["00000009.log", "00000010.log"]
    with pytest.raises(ConfigurationError, match="there is no journal file in"):
        files_in(tmp_path, FileKind.JOURNAL)


@pytest.fixture
def ledgers_dir(tmp_path: Path) -> Path:
    """A directory of ledgers whose index knows ledger 5 with entries 0…199 and 500…501."""
    (tmp_path / "index").mkdir()
    index = Index(open_lmdb(str(tmp_path / "index"), 1 << 24, TABLES))
    ids = np.concatenate((np.arange(200), [500, 501])).astype(np.int64)
    table = LocationTable(
        ids,
        np.ones(len(ids), np.uint32),
        np.arange(len(ids), dtype=np.uint32) * 40 + 4096,
        np.full(len(ids), 40, np.uint32),
    )
    row = LedgerIndexRow(fenced=True, first_entry_id=0, last_entry_id=501, max_lac=500)
    index.commit(
        CheckpointChange(
            mark=Mark(2, 4096, 9, NONCE),
            ledgers=[LedgerChange(5, row, table)],
            sealed=[SealedFile(1, FileKind.JOURNAL, 20000)],
            meta={b"bookie_id": b"b-1", b"clean": b"1"},
        )
    )
    index.close()
    return tmp_path


def test_ranges_of_a_ledger(ledgers_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored ids come as ranges, also where the index is read in several pieces."""
    with opened_index(ledgers_dir) as index:
        assert list(entry_ranges(index, 5)) == [(0, 199), (500, 501)]
        assert list(entry_ranges(index, 6)) == []
        monkeypatch.setattr("bookie.node.engine.index.entry_index.PAGES_PER_READ", 2)
        assert list(entry_ranges(index, 5)) == [(0, 199), (500, 501)]


def test_index_command(ledgers_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ledgers, the files, one ledger's entries, and the checksums."""
    assert app.run(["inspect", "index", str(ledgers_dir)]) == 0
    out = capsys.readouterr().out
    assert "file 2, offset 4096" in out
    assert re.search(r"stopped cleanly +yes", out)
    for words, expected in (
        ([], {"ledger_id": 5, "entries": 202, "fenced": True, "last_entry_id": 501}),
        (["--files"], {"file": 1, "kind": "journal", "state": "SEALED", "live_bytes": 8080}),
        (["--ledger", "5"], {"first_entry_id": 0, "last_entry_id": 199, "entries": 200}),
    ):
        assert app.run(["inspect", "index", str(ledgers_dir), "-o", "json", *words]) == 0
        row = json.loads(capsys.readouterr().out)[0]
        assert row | expected == row
    assert app.run(["inspect", "index", str(ledgers_dir), "--verify", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "pages": 5}


def test_running_bookie_is_left_alone(ledgers_dir: Path) -> None:
    """While a process holds the directory its index is not opened."""
    with (
        opened_index(ledgers_dir),
        pytest.raises(DirectoryLockedError),
        opened_index(ledgers_dir),
    ):
        pytest.fail("opened twice")


def test_no_index_is_one_sentence(tmp_path: Path) -> None:
    """Inspecting a directory without an index leaves it as it is."""
    with (
        pytest.raises(ConfigurationError, match="there is no index in"),
        opened_index(tmp_path),
    ):
        pytest.fail("opened nothing")
    assert list(tmp_path.iterdir()) == []


def test_cookies_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Directories of one bookie agree; a foreign one is shown and makes the status 1."""
    for name, unique_id in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).mkdir()
        cookie = Cookie("b-1", ("/j",), ("/l",), "cluster", unique_id, CookieState.READY)
        (tmp_path / name / "COOKIE").write_bytes(encode_cookie(cookie))
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert app.run(["inspect", "cookie", a, b]) == 0
    assert app.run(["inspect", "cookie", a, c, "-o", "json"]) == 1
    out = capsys.readouterr().out
    assert [row["unique_id"] for row in json.loads(out[out.index("[") :])] == ["one", "two"]
    with pytest.raises(ConfigurationError, match="there is no cookie in"):
        inspection.read_cookie(tmp_path)
