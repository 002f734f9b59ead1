"""Decides by the cookies if the directories are this bookie's, and carries the decision out.

A copy of the cookie is in the metadata store and in each directory. If a copy is missing or
differs, a disk was exchanged, emptied or mixed up. The bookie could then deny acknowledged entries,
so it must not start. A missing copy is never made again.

===========  ==========================  ==============================================
metadata     directories                 decision
===========  ==========================  ==============================================
none         no cookie, all empty        a new bookie: stamp
none         no cookie, some not empty   refuse: data without an owner
none         some cookie                 refuse: the metadata cookie is gone
NEW          cookies equal, or none and  resume: an earlier first start was interrupted
             that directory is empty
NEW          any other                   refuse
READY        all equal                   start
READY        any missing or different    refuse
===========  ==========================  ==============================================

To stamp a new bookie, first the metadata cookie is written as NEW with a fresh unique id. Then a
durable cookie is written into each directory, and the empty index is made. At last the metadata
cookie is set to READY by compare-and-set. After a crash between these steps, one of the rows above
applies.

A newly stamped bookie is in doubt, and its cookie says so. A bookie with the same id may have
acknowledged entries before, in directories that are gone. The module `own_cookie` explains state
numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.env import Environment
from bookie.errors import CookieError, FormatError
from bookie.node.engine.directories import Directories
from bookie.node.own_cookie import OwnCookie, StateComparison, compare_states


class Decision(enum.Enum):
    """The decision about this start: stamp a new bookie, resume the stamping, or start."""

    STAMP = enum.auto()
    RESUME = enum.auto()
    START = enum.auto()


@dataclass(frozen=True, slots=True)
class Root:
    """One directory as it was found, with its cookie if it has one."""

    path: str
    cookie: Cookie | None
    empty: bool


def decide(
    bookie_id: str, expected: Cookie, recorded: Cookie | None, roots: list[Root]
) -> Decision:
    """Return the decision in the row of the table that applies.

    `expected` is the cookie that this configuration would give; its unique id and state are
    ignored.

    Raises:
        CookieError: the bookie must not start; one sentence says why.
    """
    if recorded is None:
        return _decide_unrecorded(expected, roots)
    _refuse_difference(expected, recorded, "the metadata store")
    for root in roots:
        if root.cookie is not None:
            if root.cookie.bookie_id != bookie_id:
                raise CookieError(
                    f"{root.path} holds data of bookie {root.cookie.bookie_id}, and this is bookie "
                    f"{bookie_id}: give each bookie its own directories back"
                )
            _refuse_difference(recorded, root.cookie, root.path, with_unique_id=True)
        elif recorded.state is CookieState.READY:
            raise CookieError(
                f"{root.path} has no cookie although bookie {bookie_id} had stamped it: the disk "
                "was lost or replaced; bring it back, or empty all directories of the bookie, type "
                f"`bookie cookie delete {bookie_id}`, and start it again"
            )
        elif not root.empty:
            raise CookieError(
                f"{root.path} has no cookie but is not empty; give bookie {bookie_id} an empty "
                "directory"
            )
    return Decision.START if recorded.state is CookieState.READY else Decision.RESUME


def _decide_unrecorded(expected: Cookie, roots: list[Root]) -> Decision:
    for root in roots:
        found = root.cookie
        if found is not None:
            remedy = "give it its own cluster, or empty directories"
            if (found.bookie_id, found.instance_id) == (expected.bookie_id, expected.instance_id):
                remedy = "type `bookie cookie restore` with all of its directories"
            raise CookieError(
                f"{root.path} has a cookie of bookie {found.bookie_id} in cluster "
                f"{found.instance_id}, but this cluster has no cookie of {expected.bookie_id}; "
                f"{remedy}"
            )
        if not root.empty:
            raise CookieError(
                f"{root.path} is not empty and has no cookie; give bookie {expected.bookie_id} an "
                "empty directory"
            )
    return Decision.STAMP


def _refuse_difference(
    ours: Cookie, theirs: Cookie, where: str, *, with_unique_id: bool = False
) -> None:
    if not with_unique_id:
        theirs = replace(theirs, unique_id=ours.unique_id)
    different = ours.differences(theirs)
    if different:
        sentence = f"the cookie in {where} differs from this bookie in its {', '.join(different)}"
        if {"journal directories", "ledger directories"}.issuperset(different):
            sentence += "; if you moved its directories, finish with `bookie cookie move`"
        raise CookieError(sentence)


@dataclass(frozen=True, slots=True)
class ClaimedDirectories:
    """The decision about directories that belong to this bookie, and its cookie."""

    decision: Decision
    cookie: OwnCookie


async def ensure_identity(
    environment: Environment,
    directories: Directories,
    cookies: CookieManager,
    bookie_id: str,
    instance_id: str,
    furnish: Callable[[], None] = lambda: None,
) -> ClaimedDirectories:
    """Make sure that the directories are this bookie's; stamp them if they are new.

    `furnish` makes the index of a new bookie, in a worker thread; after an interruption it is
    called again. This function returns when the decision has been carried out.

    Raises:
        CookieError: they are not, or something is missing.
        BadVersionError: another process stamps the same bookie id right now.
    """
    expected = Cookie(
        bookie_id=bookie_id,
        journal_dirs=(directories.journal,),
        ledger_dirs=(directories.ledgers,),
        instance_id=instance_id,
        unique_id=environment.clock.nonce().hex(),
        state=CookieState.NEW,
        is_in_doubt=True,
    )
    roots = await environment.workers.run("read", _look, directories)
    recorded = await cookies.read_latest(bookie_id)
    decision = decide(bookie_id, expected, recorded.value if recorded else None, roots)
    if decision is Decision.START:
        assert recorded is not None
        found = [(root.path, root.cookie) for root in roots if root.cookie is not None]
        comparison = compare_states(recorded.value, found)
        own = OwnCookie(environment, directories, cookies, recorded.value, comparison)
        return ClaimedDirectories(decision, own)
    if recorded is None:
        recorded = await cookies.create(expected)
    environment.failpoints.hit("cookie.after_metadata_new")
    ready = replace(recorded.value, state=CookieState.READY, is_in_doubt=True)
    for root in roots:
        if root.cookie is None:
            await environment.workers.run(
                "read", directories.write_cookie, root.path, encode_cookie(ready)
            )
            environment.failpoints.hit("cookie.after_directory")
    await environment.workers.run("index", furnish)
    environment.failpoints.hit("cookie.before_ready")
    await cookies.write(ready, recorded.version)
    environment.failpoints.hit("cookie.after_ready")
    comparison = StateComparison(ready.state_number)
    return ClaimedDirectories(
        decision, OwnCookie(environment, directories, cookies, ready, comparison)
    )


def _look(directories: Directories) -> list[Root]:
    roots = []
    for path in directories.roots():
        data = directories.read_cookie(path)
        try:
            cookie = None if data is None else decode_cookie(data)
        except FormatError as error:
            raise CookieError(f"the cookie in {path} cannot be read: {error}") from error
        roots.append(Root(path, cookie, directories.is_empty(path)))
    return roots
