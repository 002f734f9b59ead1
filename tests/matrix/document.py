"""Writes the documents of both matrices from their tables: ``python -m tests.matrix.document``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.matrix.cells import Cell, all_cells
from tests.matrix.io_table import FAULTS
from tests.matrix.table import RULES, Outcome, Rule

DOCUMENT = Path(__file__).parents[2] / "docs" / "corruption.md"
IO_DOCUMENT = DOCUMENT.with_name("io-errors.md")

_HEAD = """# What damage comes to

The tables below say what a bookie does when a record, a page or a file of its directories is
damaged. They are generated from `tests/matrix/table.py`. `tests/matrix` damages a real bookie's
files in each of these ways. It then starts the bookie two or three times on the same files. Some
damages are part of the long run only. Whatever the damage, a bookie

- never serves bytes of another entry;
- never forgets a fence that it has answered;
- never denies an entry that was durable, but for the gaps below;
- never dies at every start.

**Places.**

| place | meaning |
|---|---|
| *log* | an entry log |
| *below* | a journal file below the mark; the index has its entries |
| *mark* | the journal file that the mark names |
| *earlier* | a journal file above the mark that has a successor |
| *middle* | the last journal file, with synced blocks behind the damage |
| *last* | the last block |
| *vouched* | the last block but for an idle marker: an empty block, which proves that the block \
before it was synced. An idle bookie writes one after a second, a stopping one at its end |
| *killed*, *stopped* | how the bookie ended |
| *system crashed* | the next start has another boot id |
| *file removed*, *file compacted* | the bookie was killed after the last transaction of the index \
released a file. The file held a fence, or a compaction had moved its entries |
| *stale* (of a page) | what stood in the same place after an earlier transaction |

**What a bookie cannot see.**

- Bytes that were damaged before they arrived have a wrong checksum. The bookie refuses them.
- A flipped bit in a stored payload below the mark may be served. The bookie checks the ids in each
  packet; the reader checks the digest. The bookie checks the block of a ledger without digests, or
  of which it does not know yet that it has them. The scrubber finds all damage below the mark in
  time, and the bookie is in doubt from then on.
- Damage to the very last block looks like a write that a crash tore, as long as no idle marker
  follows.
- A ledger whose deletion is lost comes back until its next collection. The metadata does not know
  it.
- A start after an orderly stop does not read the whole index. Checksums of pages and rows show
  damage when they are read. A damaged key of an inner page may hide entries until the scrubber
  finds it. A damaged structure may end the process; the next start then reads everything.

"""


def rendered() -> str:
    """The document."""
    cells = list(all_cells())
    lines = [_HEAD]
    for outcome in Outcome:
        rules = [rule for rule in RULES if rule.outcome is outcome]
        count = sum(rule.matches(cell) for rule in rules for cell in cells)
        lines.append(f"## {outcome.value[0].upper()}{outcome.value[1:]}\n\n{count} cells.\n\n")
        lines.append("| what | where | damage | because |\n|---|---|---|---|\n")
        lines += [_row(rule, [cell for cell in cells if rule.matches(cell)]) for rule in rules]
        lines.append("\n")
    return "".join(lines).rstrip("\n") + "\n"


_IO_HEAD = """# What an error of a device comes to

The table says what a bookie does when a call on one of its files fails: the first, the second or
a later call of its kind. It is generated from `tests/matrix/io_table.py`, and
`tests/matrix/test_io_errors.py` does each of these to a real bookie. After a failure the bookie
acknowledges nothing and does not try the call again. The next start on a sound device has
everything that was acknowledged, and nothing under a refused id. A write that fails has written its
first half.

The system may also cut a write off: `pwritev` writes half of it and reports no error. The bookie
then writes the rest and goes on. If the rest fails, the outcome is that of a write that fails at
once. A commit of the index fails in four places:

- before anything was written;
- when half of its pages are on the device;
- when all pages are, but not the page that names the tree;
- when everything is on the device and the call reports an error.

If ext4 turns read-only during a sync of new blocks, the kernel may lose them and report success. So
a `fallocate` that changes nothing follows such a sync. If it says that the file system failed
(EROFS, EIO), the outcome is that of a failed sync. A small commit of the index replaces zeros that
were synced before, which ext4 does not lose. If these zeros cannot be written, the commit fails
before anything was written. A full device is the exception: there it goes on without them. A large
commit, or one in an index that had large ones, may leave a damaged index.
`tests/system/test_syncs_during_an_error.py` does this on a real file system.

The table leaves out an index with a page that a start cannot read (EIO, ENODATA, EBADMSG). The
start sets that index aside, builds it again from the files, as after damage, and logs it. If a
journal or a log cannot be read meanwhile, the start ends with exit status 74 and the index stays
aside.

| what | call | when | EIO | ENOSPC, from then on | because |
|---|---|---|---|---|---|
"""


def rendered_io() -> str:
    """The document about errors of devices."""
    rows = [
        f"| {fault.what} | {fault.call} | {fault.phase.value} | {fault.on_eio.value} "
        f"| {fault.on_enospc.value} | {fault.because} |\n"
        for fault in FAULTS
    ]
    return _IO_HEAD + "".join(rows)


def _row(rule: Rule, cells: list[Cell]) -> str:
    columns = (
        _listed(cell.thing for cell in cells),
        _listed(cell.place for cell in cells),
        _listed(cell.damage for cell in cells),
        rule.because,
    )
    return "| " + " | ".join(columns) + " |\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(rendered(), encoding="utf-8")
    IO_DOCUMENT.write_text(rendered_io(), encoding="utf-8")
