"""Keeps the three copies of a running bookie's cookie, with its state number and incarnation.

If an operator restores older directories, the bookie lacks entries that it acknowledged later. The
**state number** detects a restored copy. The number increases in the directories and in the
metadata store, in this order::

    directories   number n+1, not settled: the store may have n or n+1
    store         compare-and-set n -> n+1
    directories   number n+1, settled

=====================================  =========================================================
at a start                             meaning
=====================================  =========================================================
directories = store                    the same state
directories unsettled, store one less  the same state; a crash came between the steps
directories < store                    the directories are an older state: the bookie is in doubt
directories > store                    the metadata store went back to an older state
=====================================  =========================================================

The state number increases at each start and stop, and every `ADVANCE_SECONDS` while entries are
written. So a restored copy of a running bookie's directories is detected, too, unless the bookie
crashed within `ADVANCE_SECONDS` after the copy was made.

If another process deletes or changes the cookie, this process ends, because the other process now
owns the bookie's id.

The **incarnation** is a random id. When the bookie may have lost acknowledged entries, it makes a
new incarnation, by the steps above. The bookie refuses calls that name an older incarnation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from bookie.cluster.cookie import Cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.env import Environment, is_disk_full
from bookie.errors import (
    BadVersionError,
    CookieError,
    DiskFullError,
    IdentityError,
    MetadataError,
    RequestError,
    StorageFailedError,
)
from bookie.metadata.versioned import Versioned
from bookie.node.engine.directories import Directories
from bookie.telemetry import event_log

ADVANCE_SECONDS = 10.0
"""The interval between reads of the store's cookie; after adds, the state number is increased,
too."""

LOOK_SECONDS = 1.0
"""The interval at which the bookie checks for a new or ended doubt, which the cookie then
records."""

STOP_SECONDS_MAX = 2.0
"""The longest time that a stop waits for the metadata store to accept the last state number."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class StateComparison:
    """The result of comparing the directories' state with the metadata store's state."""

    number: int
    """The highest state number that a copy of the cookie certainly reached."""
    older: str = ""
    """The reason to conclude that the directories have an older state; empty without a reason."""
    store_went_back: str = ""
    """The reason to conclude that the metadata store went back in time; empty without a reason."""


def went_back_in_time(stored: int, reached: int) -> str:
    """Return the message for operators that the metadata store's state number is too low."""
    return (
        f"the metadata store went back in time: the bookie's state number is {stored}, "
        f"and was {reached}"
    )


def compare_states(recorded: Cookie, roots: Sequence[tuple[str, Cookie]]) -> StateComparison:
    """Compare the store's cookie with the cookies of the directories, given as path and cookie."""
    stored = recorded.state_number
    number, older, went_back = stored, "", ""
    for path, cookie in roots:
        sure = cookie.state_number - (not cookie.is_settled)
        number = max(number, sure)
        if cookie.state_number < stored:
            older = older or (
                f"{path} holds state {cookie.state_number} of the bookie, but it had reached "
                f"state {stored}"
            )
        if sure > stored:
            went_back = went_back_in_time(stored, sure)
    return StateComparison(number, older, went_back)


class OwnCookie:
    """Changes the three copies of this bookie's cookie together, in one task at a time."""

    def __init__(
        self,
        environment: Environment,
        directories: Directories,
        cookies: CookieManager,
        cookie: Cookie,
        comparison: StateComparison,
    ) -> None:
        self._env = environment
        self._directories = directories
        self._cookies = cookies
        self._cookie = cookie
        self._number = comparison.number
        self._attempted = comparison.number
        """The state number that the store may have after a write with an unknown outcome."""
        self._unanswered: list[Cookie] = []
        """The cookies that this process sent without an answer; their writes may take effect
        late."""
        self._lock = asyncio.Lock()
        self._on_store_went_back: Callable[[str], Awaitable[None]] | None = None
        self._is_stopping = False
        self.comparison = comparison
        """The result of `compare_states` at this start."""
        self.is_in_doubt_at_stop: bool | None = None
        """The doubt (True or False) that `stop` records in the cookie; None keeps the recorded
        value."""

    @property
    def incarnation(self) -> str:
        """The bookie's incarnation, which is durable in the metadata store."""
        return self._cookie.incarnation

    @property
    def is_in_doubt(self) -> bool:
        """True if the metadata store says that this bookie may lack entries."""
        return self._cookie.is_in_doubt

    async def advance(self, *, renew: bool = False, is_in_doubt: bool | None = None) -> None:
        """Durably increase the state number in all copies of the cookie.

        On a full device, the state number does not increase, and a new incarnation or a changed
        doubt is recorded in the metadata store only.

        Args:
            renew: Also create a new incarnation.
            is_in_doubt: The doubt (True or False) to record in the metadata store; None keeps the
                recorded value.

        Raises:
            IdentityError: another process changed or deleted the cookie.
            MetadataError, RequestError: the store does not answer, refuses access, or belongs to
                another cluster. The outcome may be unknown; then repeat the call.
            StorageFailedError: a disk failed.
        """
        async with self._lock:
            await self._advance(renew=renew, is_in_doubt=is_in_doubt)

    async def end_doubt(self, end: Callable[[], Awaitable[None]]) -> None:
        """Record in the metadata store that the doubt has ended, then call `end`.

        After a crash between the two steps, the bookie is not put in doubt again. Raises like
        `advance`.
        """
        async with self._lock:
            await self._advance(renew=False, is_in_doubt=False)
            await end()

    async def _advance(self, *, renew: bool, is_in_doubt: bool | None) -> None:
        found = await self._read()
        if found.value.state_number < self._number:
            if self._is_stopping:
                return  # the next start finds and records the difference
            if self._on_store_went_back is not None:
                reason = went_back_in_time(found.value.state_number, self._number)
                await self._on_store_went_back(reason)
        incarnation = self._cookie.incarnation
        if renew or not incarnation:
            incarnation = self._env.clock.nonce().hex()
        wanted = replace(
            found.value,
            state_number=max(self._number, found.value.state_number) + 1,
            incarnation=incarnation,
            is_in_doubt=found.value.is_in_doubt if is_in_doubt is None else is_in_doubt,
            is_settled=True,
        )
        has_room = await self._write(replace(wanted, is_settled=False))
        if not has_room:
            if wanted.is_in_doubt == found.value.is_in_doubt and not renew:
                return
            # Update the store with the old number, so that the directories do not count as older.
            wanted = replace(wanted, state_number=wanted.state_number - 1)
        self._env.failpoints.hit("cookie.unsettled")
        self._attempted = wanted.state_number
        if wanted not in self._unanswered:
            self._unanswered.append(wanted)
        try:
            await self._cookies.write(wanted, found.version)
        except BadVersionError as error:
            latest = (await self._read()).value
            if latest not in self._unanswered:
                raise self._usurped() from error
            if latest != wanted:
                # An earlier write of this process took effect late, so repeat this write on top of
                # its result.
                await self._advance(renew=renew, is_in_doubt=is_in_doubt)
                return
        # Earlier writes can no longer take effect: they expect an older version than the store has.
        self._unanswered.clear()
        self._env.failpoints.hit("cookie.advanced")
        self._cookie, self._number = wanted, wanted.state_number
        if has_room:
            await self._write(wanted)

    async def _read(self) -> Versioned[Cookie]:
        """Read the store's copy of the cookie; refuse a copy that another process has changed.

        Raises:
            CookieError: the cookie is gone, or belongs to another bookie.
            IdentityError: another process has increased the cookie's state number.
            WrongClusterError: the store belongs to another cluster, or to none.
            MetadataError: the store does not answer.
        """
        found = await self._cookies.read_latest(self._cookie.bookie_id)
        different = [] if found is None else self._cookie.differences(found.value)
        if found is None or different:
            # A store of another cluster does not prove that this bookie has lost its id.
            await self._cookies.require_instance(self._cookie.instance_id)
        if found is None:
            raise CookieError(f"the cookie of bookie {self._cookie.bookie_id} was deleted")
        if different:
            raise CookieError(
                f"the cookie in the metadata store has another {', '.join(different)} now"
            )
        if found.value.state_number > max(self._number, self._attempted):
            raise self._usurped()
        return found

    def _usurped(self) -> IdentityError:
        return IdentityError(
            f"another process runs as bookie {self._cookie.bookie_id}, or did meanwhile; stop it, "
            "or give this one another id"
        )

    async def _write(self, cookie: Cookie) -> bool:
        """Write the copies in both directories, durably; return False if a device is full."""
        data = encode_cookie(cookie)
        try:
            for root in self._directories.roots():
                await self._env.workers.run("read", self._directories.write_cookie, root, data)
        except OSError as error:
            if is_disk_full(error):
                _log.warning("cookie_not_written", reason=str(error))
                return False
            raise StorageFailedError(f"a cookie could not be written: {error}") from error
        return True

    async def keep(
        self,
        in_doubt: Callable[[], bool],
        written_bytes: Callable[[], float],
        on_store_went_back: Callable[[str], Awaitable[None]],
    ) -> None:
        """Keep the copies of the cookie up to date until cancelled.

        Args:
            in_doubt: Returns True if the bookie may lack entries now.
            written_bytes: Returns a number that increases with every write.
            on_store_went_back: Called with the reason, before any write, if the metadata store went
                back to an older state.

        Raises:
            IdentityError: another process changed or deleted the cookie.
            StorageFailedError: a disk failed.
        """
        self._on_store_went_back = on_store_went_back
        clock, written = self._env.clock, written_bytes()
        advanced_at, told = clock.monotonic(), ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            doubt_changed = in_doubt() != self.is_in_doubt
            if not doubt_changed and clock.monotonic() - advanced_at < ADVANCE_SECONDS:
                continue
            is_due = doubt_changed or written_bytes() != written
            try:
                if is_due:
                    advanced_at, written = clock.monotonic(), written_bytes()
                    async with self._lock:
                        await self._advance(renew=False, is_in_doubt=in_doubt())
                else:
                    advanced_at = clock.monotonic()
                    async with self._lock:
                        await self._read()
                told = ""
            except (MetadataError, RequestError, DiskFullError) as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("state_number_not_advanced", reason=told)

    async def stop(self) -> None:
        """Increase the state number after an orderly stop, if the store answers in time."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self.advance(is_in_doubt=self.is_in_doubt_at_stop)
        except (TimeoutError, MetadataError, RequestError, IdentityError, DiskFullError) as error:
            _log.warning("state_number_not_advanced", reason=str(error))
