"""What each cell of the corruption matrix must come to, and why: the table.

Exactly one rule matches any cell. `docs/corruption.md` is this table in prose; a test holds the two
together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tests.matrix.cells import (
    BLOCK_FIELDS,
    COOKIES,
    DATA_PAGES,
    DELETION,
    FILE,
    INDEX_VALUES,
    KEY_DAMAGES,
    META_DAMAGES,
    META_PAGES,
    SMALL_FILES,
    STOPPED,
    Cell,
)
from tests.matrix.specimen import KINDS, REMOVED


class Outcome(enum.Enum):
    """What a start on the damaged directories comes to."""

    SERVE = "everything is served"
    DIGEST = "served; the digest shows the client which bytes are damaged"
    IO_ERROR = "the damaged part answers with an I/O error, the rest is served"
    TRUNCATE = "the end is cut off, as after a crash"
    INTEGRITY = "integrity mode: reported, a new incarnation, every ledger in limbo"
    REBUILD = "the index is made again from the files, then integrity mode"
    REFUSE = "the bookie does not start and says why in one sentence"


DATA_KINDS = frozenset({"entries", "steps", "recovery", "ledger"})
"""Records that hold entries, or (a ledger's first) share their block with them."""
FACT_KINDS = frozenset(KINDS) - DATA_KINDS
MOVED = frozenset({"duplicated", "stale"})
REPLACED = frozenset({"zeroed", "garbage", "of another file"}) | MOVED
CUTS = frozenset({"cut before", "cut inside"})
UNREAD_FIELDS = frozenset({*BLOCK_FIELDS, "record length", "padding"})
LINK_FIELDS = frozenset({"ids", "nonce", "payload"})
INDEXED = frozenset({"log", "below"})
REPLAYED = frozenset({"earlier", "middle", "vouched"})


@dataclass(frozen=True)
class Rule:
    """Cells with the same outcome for the same reason; None stands for any."""

    things: frozenset[str]
    places: frozenset[str] | None
    damages: frozenset[str] | None
    outcome: Outcome
    because: str

    def matches(self, cell: Cell) -> bool:
        """Whether this row speaks about `cell`."""
        return (
            cell.thing in self.things
            and (self.places is None or cell.place in self.places)
            and (self.damages is None or cell.damage in self.damages)
        )


def _set(*names: str) -> frozenset[str]:
    return frozenset(names)


RULES: tuple[Rule, ...] = (
    # Records whose entries the index has.
    Rule(
        frozenset(KINDS),
        INDEXED,
        UNREAD_FIELDS,
        Outcome.SERVE,
        "below the mark a block is not read as a block again: the index knows where each packet is",
    ),
    Rule(
        DATA_KINDS - {"ledger"},
        INDEXED,
        _set("payload"),
        Outcome.DIGEST,
        "a bookie checks the ids of what it reads, not the digest, which may need a key it does"
        " not have: clients do, and the scrubber checks the block's checksum. Of a ledger without"
        " digests the bookie checks the block, and answers with an I/O error",
    ),
    Rule(
        DATA_KINDS - {"ledger"},
        INDEXED,
        _set("ids"),
        Outcome.IO_ERROR,
        "the packet says that it is another entry than the index does",
    ),
    Rule(
        FACT_KINDS | {"ledger"},
        INDEXED,
        _set("ids", "payload"),
        Outcome.SERVE,
        "what the record says is in the row of its ledger",
    ),
    Rule(
        DATA_KINDS,
        INDEXED,
        REPLACED,
        Outcome.IO_ERROR,
        "the index knows the entry and other bytes stand in its place",
    ),
    Rule(
        FACT_KINDS,
        _set("below"),
        REPLACED,
        Outcome.SERVE,
        "what the record says is in the row of its ledger",
    ),
    Rule(
        FACT_KINDS,
        _set("log"),
        REPLACED,
        Outcome.IO_ERROR,
        "a block of a log holds what many blocks of a journal held, entries of others as well",
    ),
    Rule(
        frozenset(KINDS),
        _set("log"),
        CUTS,
        Outcome.IO_ERROR,
        "the index knows the entries behind the cut, and the file ends before them",
    ),
    Rule(
        frozenset(KINDS),
        _set("below"),
        CUTS,
        Outcome.INTEGRITY,
        "the file of the mark ends before the mark",
    ),
    Rule(
        _set("link"),
        INDEXED | {"mark"},
        UNREAD_FIELDS | LINK_FIELDS,
        Outcome.SERVE,
        "a link is looked at only when the file behind it is replayed, and that of a log by a"
        " rebuild",
    ),
    Rule(
        _set("link"),
        INDEXED | {"mark"},
        REPLACED,
        Outcome.IO_ERROR,
        "the first block holds entries, too, which the index knows",
    ),
    Rule(
        _set("link"),
        INDEXED,
        CUTS,
        Outcome.IO_ERROR,
        "the file is wholly below the mark, so only reads come by",
    ),
    Rule(
        _set("link"),
        _set("mark"),
        CUTS,
        Outcome.INTEGRITY,
        "the file of the mark ends before the mark",
    ),
    # Records that a start replays.
    Rule(
        frozenset(KINDS) | {"link"},
        REPLAYED | {"last"},
        _set("padding"),
        Outcome.SERVE,
        "nobody reads what fills a block up to its end",
    ),
    Rule(
        frozenset(KINDS) | {"link"},
        REPLAYED,
        (UNREAD_FIELDS | REPLACED | CUTS | LINK_FIELDS) - {"padding"},
        Outcome.INTEGRITY,
        "the block had been synced: a later block, the next file, or room that is missing says so;"
        " the blocks behind it are kept",
    ),
    Rule(
        _set("unlimbo"),
        _set("last"),
        (UNREAD_FIELDS | (REPLACED - MOVED) | {"ids", "payload"}) - {"padding"},
        Outcome.SERVE,
        "cut off as a torn write; the ledger is in limbo again, and is only checked once more",
    ),
    Rule(
        frozenset(KINDS) - {"unlimbo"},
        _set("last"),
        (UNREAD_FIELDS | (REPLACED - MOVED) | {"ids", "payload"}) - {"padding"},
        Outcome.TRUNCATE,
        "nothing tells it from a write that a crash tore; an idle bookie closes this gap after a"
        " second by a block that vouches for the last one",
    ),
    Rule(
        frozenset(KINDS),
        _set("last"),
        MOVED | CUTS,
        Outcome.INTEGRITY,
        "a crash neither moves a block nor shortens a file",
    ),
    Rule(
        _set(FILE),
        None,
        None,
        Outcome.INTEGRITY,
        "its row, the mark, the file behind it or the end of the file before it says that it was"
        " there",
    ),
    # File headers.
    Rule(
        _set("file header"),
        INDEXED,
        frozenset({"magic", "version", "kind", "number", "nonce", "CRC"})
        | {"zeroed", "garbage", "of another file"},
        Outcome.SERVE,
        "entries are found by the index; the header is read by a replay or a rebuild",
    ),
    Rule(
        _set("file header"),
        INDEXED,
        _set("cut inside"),
        Outcome.IO_ERROR,
        "the index knows the entries, and the file ends before them",
    ),
    Rule(
        _set("file header"),
        _set("mark", "earlier", "middle"),
        frozenset({"magic", "version", "kind", "number", "nonce", "CRC"})
        | {"zeroed", "garbage", "cut inside"},
        Outcome.INTEGRITY,
        "a file gets its name when its header is durable; without the nonce no block is believed",
    ),
    Rule(
        _set("file header"),
        _set("mark", "earlier", "middle"),
        _set("of another file"),
        Outcome.REFUSE,
        "two files say that they are the same one: somebody copied them, and has to look",
    ),
    # Values of the index, under a structure that is right.
    Rule(
        _set("location page", "ledger row", "row of a fenced ledger"),
        _set("killed"),
        None,
        Outcome.IO_ERROR,
        "its own checksum fails; whoever asks for this ledger gets an error, the others are served",
    ),
    Rule(
        _set("location page", "ledger row", "row of a fenced ledger"),
        _set("system crashed"),
        None,
        Outcome.REBUILD,
        "after a crash of the system every page and row is read at once",
    ),
    Rule(
        _set("file row", "mark", "format"),
        None,
        None,
        Outcome.REBUILD,
        "a start needs it, and the files say the same",
    ),
    Rule(
        _set("key of the last ledger"),
        None,
        _set(*KEY_DAMAGES),
        Outcome.REBUILD,
        "a start looks for the lowest and for the highest ledger, and finds one that is none",
    ),
    Rule(
        _set("key of a ledger", "key of the last ledger"),
        _set("killed"),
        _set("another one's", "missing"),
        Outcome.IO_ERROR,
        "a ledger without a row is new only if it has no pages: its entries are not denied, its"
        " fence is not forgotten, and nothing is written over its pages",
    ),
    Rule(
        _set("key of a ledger", "key of the last ledger"),
        _set("system crashed"),
        _set("another one's", "missing"),
        Outcome.REBUILD,
        "after a crash of the system every page and row is read at once",
    ),
    Rule(
        _set("key of a location page"),
        _set("killed"),
        None,
        Outcome.IO_ERROR,
        "the row of the ledger counts as many entries as lie between its first and its last: none"
        " of them is absent; where a ledger is striped over more bookies, the next start tells",
    ),
    Rule(
        _set("key of a location page"),
        _set("system crashed"),
        _set("another one's"),
        Outcome.REBUILD,
        "after a crash of the system every page and row is read at once",
    ),
    Rule(
        _set("key of a location page"),
        _set("system crashed"),
        _set("missing"),
        Outcome.IO_ERROR,
        "no other page or row is wrong, but for the count in the row of the ledger",
    ),
    Rule(
        _set("key of the mark"),
        None,
        None,
        Outcome.REBUILD,
        "an index with files and without a mark has lost it",
    ),
    Rule(
        _set("key of the integrity flag"),
        None,
        None,
        Outcome.INTEGRITY,
        "an index with a mark has a flag, or has lost it",
    ),
    Rule(
        _set("key of a journal's row", "key of a log's row"),
        None,
        _set(*KEY_DAMAGES),
        Outcome.REBUILD,
        "a start reads all rows of files",
    ),
    Rule(
        _set("key of a journal's row", "key of a log's row"),
        None,
        _set("missing"),
        Outcome.REBUILD,
        "before a file without a row is removed, a start looks for entries that are in it",
    ),
    Rule(
        _set(DELETION),
        None,
        None,
        Outcome.REBUILD,
        "pages are removed only if the key is what its value says, and the row of the ledger says"
        " that it was deleted",
    ),
    Rule(
        _set("bookie id", "instance id"),
        None,
        None,
        Outcome.REFUSE,
        "the index says that it belongs to somebody else",
    ),
    Rule(
        _set("clean flag", "boot id"),
        None,
        None,
        Outcome.SERVE,
        "a doubtful value means an unclean end or a crash of the system, which looks closer",
    ),
    Rule(
        _set("integrity flag"),
        None,
        None,
        Outcome.INTEGRITY,
        "a doubtful value means that nobody has checked",
    ),
    # Pages of LMDB.
    Rule(
        _set("newest meta page"),
        None,
        frozenset(META_DAMAGES) - {"stale"},
        Outcome.REBUILD,
        "the two meta pages take turns, and what the newest says is held against every page",
    ),
    Rule(
        _set("newest meta page"),
        _set("killed"),
        _set("stale"),
        Outcome.SERVE,
        "the index is what it was one transaction earlier, as if the last had not been made: what"
        " it brought stands in the files from the earlier mark on, and is replayed",
    ),
    Rule(
        _set("newest meta page"),
        _set("stopped"),
        _set("stale"),
        Outcome.INTEGRITY,
        "only the last transaction says that the last file was cut off in order",
    ),
    Rule(
        _set("newest meta page"),
        frozenset(REMOVED),
        _set("stale"),
        Outcome.INTEGRITY,
        "the earlier index misses the file that went after the last transaction: the file behind"
        " it names it, or it had live bytes",
    ),
    Rule(
        _set("older meta page"),
        None,
        frozenset({"page number", "page flags", "magic", "version", "page size", "transaction"})
        | {"zeroed", "garbage", "of another place", "stale"},
        Outcome.REBUILD,
        "it has to be the one before the newest",
    ),
    Rule(
        _set("older meta page"),
        None,
        _set("root of the free list", "root of the tables", "entries", "last page"),
        Outcome.SERVE,
        "only the newest snapshot is used",
    ),
    Rule(
        frozenset(DATA_PAGES) | {"data.mdb"},
        None,
        None,
        Outcome.REBUILD,
        "unless the stop was in order and the file has the same size, every page is checked, and"
        " the sum over all pairs, before LMDB maps the file",
    ),
    # The rest.
    Rule(
        frozenset(COOKIES),
        None,
        None,
        Outcome.REFUSE,
        "a cookie that is missing, unreadable or different means a disk that is not this bookie's",
    ),
    Rule(
        frozenset(SMALL_FILES),
        None,
        None,
        Outcome.SERVE,
        "nobody reads what is in it: space, a sign, and two locks",
    ),
    Rule(
        _set(STOPPED),
        None,
        None,
        Outcome.SERVE,
        "what does not fit the index is not believed: the start reads all of the index",
    ),
)

assert set(INDEX_VALUES) <= frozenset().union(*(rule.things for rule in RULES))
assert set(META_PAGES) <= frozenset().union(*(rule.things for rule in RULES))


def rule_for(cell: Cell) -> Rule:
    """The row that speaks about `cell`."""
    (rule,) = (rule for rule in RULES if rule.matches(cell))
    return rule
