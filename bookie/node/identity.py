"""Decides from the cookies whether the directories belong to this bookie; acts on the decision.

The metadata store and each directory have a copy of the cookie. If a copy is missing or differs, a
disk was exchanged, emptied or mixed up. With a wrong disk, the bookie must not start, because the
bookie could deny acknowledged entries. The bookie never recreates a missing copy.

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
READY        no cookie, all empty        replace, if that is allowed; else refuse
READY        any missing or different    refuse
===========  ==========================  ==============================================

To stamp a new bookie, the metadata cookie is first written as NEW with a fresh unique id. Then a
durable cookie is written into each directory, and the empty index is created. Finally, a
compare-and-set changes the metadata cookie to READY. If the bookie crashes during stamping, its
next start finds its decision in the table above, like any other start.

A bookie with lost data may be replaced only if each entry has a copy on another bookie
(`BookieLosses`). Only copies on currently registered bookies count. To replace the bookie, a
compare-and-set writes the metadata cookie as NEW with another unique id. Then the bookie is stamped
like a new bookie. If the disks were only unmounted, a later start with these disks is refused,
because their cookies have the former unique id.

A newly stamped bookie is in doubt, and its cookie records the doubt. The reason is that a bookie
with the same id may have acknowledged entries earlier, in directories that are gone. The module
`own_cookie` explains state numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.env import Environment
from bookie.errors import BadVersionError, CookieError, FormatError
from bookie.ledger.catalog.bookie_losses import BookieLosses, DataNotExpendableError, ExaminedLoss
from bookie.metadata.versioned import Versioned
from bookie.node.engine.directories import Directories
from bookie.node.own_cookie import OwnCookie, StateComparison, compare_states
from bookie.telemetry import event_log

LOOKS_MAX = 10
"""The largest number of examinations of the ledgers that depend on lost data. If the cookie of any
bookie changes during an examination, another examination follows."""

_log = event_log(__name__)


class Decision(enum.Enum):
    """The decision about this start: stamp a new bookie, resume stamping, start, or replace."""

    STAMP = enum.auto()
    RESUME = enum.auto()
    START = enum.auto()
    REPLACE = enum.auto()
    """Start without the lost data, in empty directories, if no entry is at risk."""


@dataclass(frozen=True, slots=True)
class Root:
    """One directory in its present state, with its cookie if it has one."""

    path: str
    cookie: Cookie | None
    empty: bool


def decide(
    bookie_id: str,
    expected: Cookie,
    recorded: Cookie | None,
    roots: list[Root],
    *,
    may_replace: bool = False,
) -> Decision:
    """Return the decision from the row of the module's table that applies.

    `expected` is the cookie that fits the configuration; its unique id and state are ignored.
    Without `may_replace`, a bookie with the metadata cookie READY and only empty directories must
    not start.

    Raises:
        CookieError: the bookie must not start; the message gives the reason.
    """
    if recorded is None:
        return _decide_unrecorded(expected, roots)
    _refuse_difference(expected, recorded, "the metadata store")
    is_ready = recorded.state is CookieState.READY
    if is_ready and may_replace and all(root.cookie is None and root.empty for root in roots):
        return Decision.REPLACE
    for root in roots:
        if root.cookie is not None:
            if root.cookie.bookie_id != bookie_id:
                raise CookieError(
                    f"{root.path} holds data of bookie {root.cookie.bookie_id}, and this is bookie "
                    f"{bookie_id}: give each bookie its own directories back"
                )
            _refuse_difference(
                recorded,
                root.cookie,
                root.path,
                with_unique_id=True,
                remedy="; another start of this id began empty, perhaps on another machine: stop "
                f"that one, and type `bookie cookie delete {bookie_id}` and `bookie cookie "
                "restore` with all directories that hold the data",
            )
        elif is_ready:
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
    return Decision.START if is_ready else Decision.RESUME


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
    ours: Cookie, theirs: Cookie, where: str, *, with_unique_id: bool = False, remedy: str = ""
) -> None:
    if not with_unique_id:
        theirs = replace(theirs, unique_id=ours.unique_id)
    different = ours.differences(theirs)
    if different:
        sentence = f"the cookie in {where} differs from this bookie in its {', '.join(different)}"
        if {"journal directories", "ledger directories"}.issuperset(different):
            sentence += "; if you moved its directories, finish with `bookie cookie move`"
        elif different == ["unique id"]:
            sentence += remedy
        raise CookieError(sentence)


@dataclass(frozen=True, slots=True)
class ClaimedDirectories:
    """The decision about directories that belong to this bookie, and the bookie's cookie."""

    decision: Decision
    cookie: OwnCookie


async def ensure_identity(
    environment: Environment,
    directories: Directories,
    cookies: CookieManager,
    bookie_id: str,
    instance_id: str,
    furnish: Callable[[], None] = lambda: None,
    losses: BookieLosses | None = None,
) -> ClaimedDirectories:
    """Ensure that the directories belong to this bookie; stamp new directories.

    `furnish` creates the index of a new bookie in a worker thread; after an interruption, the next
    start calls it again. With `losses`, a bookie whose data is lost may start empty. When this
    function returns, the decision has been carried out.

    Raises:
        CookieError: the directories belong to another bookie, or a cookie is missing.
        DataNotExpendableError: the bookie's data is lost, and the bookie may not start empty now.
        IdentityError: the bookie's data is lost, and the store has a registration of this bookie.
        BadVersionError: another process is stamping the same bookie id.
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
    decision, recorded, roots = await _decide(environment, directories, cookies, expected, losses)
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


async def _decide(
    environment: Environment,
    directories: Directories,
    cookies: CookieManager,
    expected: Cookie,
    losses: BookieLosses | None,
) -> tuple[Decision, Versioned[Cookie] | None, list[Root]]:
    """Return the decision, the store's cookie, and the present state of the directories.

    If the decision is REPLACE, this function has changed the store's cookie to NEW.
    """
    bookie_id = expected.bookie_id
    roots = await environment.workers.run("read", _look, directories)
    for left in reversed(range(LOOKS_MAX)):
        recorded = await cookies.read_latest(bookie_id)
        decision = decide(
            bookie_id,
            expected,
            recorded.value if recorded else None,
            roots,
            may_replace=losses is not None,
        )
        if decision is not Decision.REPLACE:
            return decision, recorded, roots
        assert losses is not None
        try:
            examined = await _examine(losses, bookie_id)
            # Reading all ledgers may take minutes, and a disk may be mounted meanwhile.
            if await environment.workers.run("read", _look, directories) != roots:
                raise CookieError(
                    f"a disk of bookie {bookie_id} was mounted during its start; start it again"
                )
            return decision, await _replace(losses, examined, expected), roots
        except BadVersionError as error:
            if not left:
                raise DataNotExpendableError(str(error)) from error
            _log.info("looking_again", reason=str(error))
    raise AssertionError("the last look returns or raises")


async def _examine(losses: BookieLosses, bookie_id: str) -> ExaminedLoss:
    """Find the ledgers that depend on the lost data of a bookie.

    Raises:
        DataNotExpendableError: the bookie may have had the last copies of an acknowledged entry, or
            unreadable metadata leaves this unknown.
    """
    try:
        examined = await losses.examine(bookie_id, live_only=True)
    except FormatError as error:
        raise DataNotExpendableError(
            f"all directories of bookie {bookie_id} are empty, and nobody can tell if it has the "
            f"last copies of entries: {error}"
        ) from error
    unreadable = examined.dependents.unreadable
    if unreadable.count:
        raise DataNotExpendableError(
            f"all directories of bookie {bookie_id} are empty, and nobody can tell if it has the "
            f"last copies of entries: the metadata of {unreadable.count} ledgers ({unreadable}) "
            "cannot be read; the runbook of a lost disk says what to do"
        )
    last_copies = examined.dependents.last_copies
    if last_copies.count:
        raise DataNotExpendableError(
            f"all directories of bookie {bookie_id} are empty, and it may have the last copies of "
            f"entries of {last_copies.count} ledgers ({last_copies}): bring its disks back, or "
            "start and repair the other bookies first, as the runbook of a lost disk says"
        )
    return examined


async def _replace(
    losses: BookieLosses, examined: ExaminedLoss, cookie: Cookie
) -> Versioned[Cookie]:
    """Replace the bookie's last cookie in the store with a cookie in state NEW.

    Raises:
        BadVersionError: a cookie changed after `_examine`, which must be called again.
    """
    replaced = await losses.replace(examined, cookie)
    _log.warning(
        "lost_data_replaced",
        reason="all directories are empty, and other bookies have copies of every entry",
        ledgers=examined.dependents.named.count,
        not_closed=examined.dependents.not_closed.count,
        hint="the former disks are refused from now on, if they were only not mounted or belong to "
        "another machine that has this id",
    )
    return replaced


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
