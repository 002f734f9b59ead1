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

Every kind of record, page and file of a bookie, damaged in every way, in every place. The table is
generated from `tests/matrix/table.py`, and `tests/matrix` does each of these to a real bookie's
files and starts it two or three times, each on what the start before has left (some of them in a
long run only): it comes to what stands here. Whatever the damage, a bookie
never serves bytes of another entry, never forgets a fence it answered, never denies an entry
that had been durable (but for the gaps below), and never dies at every start.

**Places.** *log*: an entry log; *below*: a journal below the mark, which the index has; *mark*:
the journal file that the mark names; *earlier*: above the mark, in a file that has a successor;
*middle*: in the last file, with synced blocks behind; *last*: the last block; *vouched*: the last
block but for an empty one that vouches for it, which an idle bookie writes after a second and a
stopping one at its end. *killed*, *stopped*: how the bookie had ended; *system crashed*: with
another boot id; *file removed*, *file compacted*: killed after the index's last transaction had let
a file go that held a fence, or whose entries a compaction had moved. *stale* of a page: what stood
in the same place after an earlier transaction.

**What a bookie cannot see.** Bytes that were damaged before they came have a wrong checksum and
are refused. A flipped bit in a stored payload below the mark is served: the bookie checks the ids
in each packet, and whoever reads checks the digest; the scrubber finds it in time, as all damage
below the mark, and the bookie is in doubt from then on. Damage to the very last block, when
nothing vouches for it yet, looks like a write that a crash tore. A ledger whose deletion is lost
comes back until its next collection; the metadata does not know it.

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

Every call that a bookie makes on every kind of file, failing at the first, the second or a later
time. The table is generated from `tests/matrix/io_table.py`, and `tests/matrix/test_io_errors.py`
does each of these to a real bookie. After a failure nothing is acknowledged, no call is tried
again, and the next start on a sound device has everything that was acknowledged and nothing under
an id that was refused. A write that fails has written its first half.

A write that the system cuts off (`pwritev`: half of it, and no error) is continued, and the bookie
goes on; if its other half fails, that comes to the same as a write that fails at once. A commit of
the index fails in four places: before anything was written, when half of its pages are on the
device, when all of them are and the page that names the tree is not, and when everything is there
and the error comes back all the same.

An index of which a page cannot be read at a start (EIO, ENODATA, EBADMSG) is not in the table: it
is set aside and made again from the files, as a damaged one is, and the log says so. A journal or
log that cannot be read while that is done ends the start with exit code 74; the index stays aside.

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
