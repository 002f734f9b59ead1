"""The driver of one recovery makes the state machine's calls until the recovery ends."""

from __future__ import annotations

import asyncio
from collections import Counter

from bookie.errors import BadVersionError, BookieError
from bookie.ids import BATCH_SIZE_BYTES_MAX, Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.connection.calls import Calls, carry_out_metadata, patiently
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.exchange import (
    ChooseNewcomers,
    MetadataConflict,
    MetadataFailed,
    MetadataWritten,
    NewcomersChosen,
    ReadMetadata,
    StartTimer,
    TimerFired,
    TimerId,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.ensembles import Ensembles, Incarnations
from bookie.ledger.quorum import slots_of
from bookie.ledger.read.verification import (
    VerifiedLac,
    VerifiedRead,
    read_command,
    verify_lac,
    verify_read,
)
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.recover.recovery_events import (
    FenceAnswered,
    NewcomersLost,
    PublishNewcomers,
    Recovered,
    RecoveryAddAnswered,
    RecoveryEffect,
    RecoveryEvent,
    RecoveryFailed,
    RecoveryReadAnswered,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    Start,
)
from bookie.ledger.write.pending import BATCH_ENTRIES_MAX
from bookie.ledger.write.requests import RequestEncoder
from bookie.metadata.versioned import Versioned
from bookie.telemetry import event_log

_log = event_log(__name__)

ADDS_BEHIND_MAX = 32
"""The largest number of unanswered batches per bookie. Without this limit, batches for a dead
bookie would fill the memory while the other bookies form ack quorums."""


async def recover_ledger(
    found: Versioned[LedgerMetadata],
    pool: BookiePool,
    ledgers: LedgerManager,
    ensembles: Ensembles,
) -> Versioned[LedgerMetadata]:
    """Fence a ledger, find its end, and close it there; return its final metadata.

    Every entry that the writer had acknowledged is then in the closed ledger, on an ack quorum. A
    ledger that is already closed stays unchanged. If too few bookies of the last ensemble store the
    found entries, other bookies take over slots of this ensemble. The metadata of the closed ledger
    names these other bookies. After a cancellation or a failure the ledger may stay IN_RECOVERY;
    any client may then start another recovery.

    Raises:
        LedgerRecoveryError: too few bookies answered; try again.
        NoSuchLedgerError: the ledger was deleted.
        NotPermittedError, WrongClusterError, BadRequestError: a bookie refused the caller.
        MetadataError, UnauthorizedError: the metadata store failed, or refused the caller.
    """
    machine = LedgerRecovery(found.value, found.version)
    async with Calls[RecoveryEvent]() as calls:
        driver = _RecoveryDriver(machine, pool, ledgers, ensembles, calls)
        effects = machine.step(Start())
        while True:
            for effect in effects:
                if isinstance(effect, Recovered):
                    _log.info(
                        "ledger_recovered",
                        ledger_id=effect.metadata.ledger_id,
                        last_entry_id=effect.metadata.last_entry_id,
                    )
                    return Versioned(effect.metadata, effect.version)
                if isinstance(effect, RecoveryFailed):
                    raise effect.error
                driver.begin(effect)
            effects = machine.step(await calls.next())


class _RecoveryDriver:
    """Starts the calls that the state machine requests; every call ends in one event."""

    def __init__(
        self,
        machine: LedgerRecovery,
        pool: BookiePool,
        ledgers: LedgerManager,
        ensembles: Ensembles,
        calls: Calls[RecoveryEvent],
    ) -> None:
        self._metadata = machine.metadata
        self._ledger_id = machine.metadata.ledger_id
        self._key = machine.metadata.password_key
        self._token = machine.metadata.c_token
        self._encoder = RequestEncoder(machine.metadata, machine.quorum, pool.next_request_id)
        self._pool = pool
        self._ledgers = ledgers
        self._ensembles = ensembles
        self._cookies = ensembles.cookies
        self._calls = calls
        self._incarnations = Incarnations(ensembles.cookies)
        """The incarnation of each bookie whose answers count, read after the ledger became
        IN_RECOVERY."""
        self._failing: set[str] = set()
        """Bookies that failed to store entries; these bookies take over no slot."""
        self._adds_behind: Counter[str] = Counter()

    def begin(self, effect: RecoveryEffect) -> None:
        name = f"recovery of ledger {self._ledger_id}"
        match effect:
            case SendFence():
                self._calls.start(self._fence(effect), name)
            case SendRecoveryRead():
                self._calls.start(self._read(effect), name)
            case SendAdd():
                self._calls.start(self._add(effect), name)
            case ChooseNewcomers():
                self._calls.start(self._choose(effect), name)
            case PublishNewcomers():
                self._calls.start(self._publish(effect), name)
            case StartTimer(timer, seconds):
                self._calls.start(_sleep(timer, seconds), name)
            case ReadMetadata() | WriteMetadata():
                call = carry_out_metadata(self._ledgers, self._ledger_id, self._token, effect)
                self._calls.start(call, name)
            case Recovered() | RecoveryFailed():
                raise AssertionError("the end of a recovery is no call")

    async def _fence(self, effect: SendFence) -> RecoveryEvent:
        try:
            incarnation = await self._incarnations.of(effect.bookie_id)
            channel = self._pool.connection(effect.bookie_id).channel()
            reply = await channel.fence(
                self._ledger_id,
                self._key,
                timeout=self._pool.settings.read_timeout_seconds,
                incarnation=incarnation,
            )
        except BookieError as error:
            return FenceAnswered(effect.round, effect.slot, error.status, message=str(error))
        told = verify_lac(self._ledger_id, reply, self._encoder.digester)
        return fence_answered(effect, told)

    async def _read(self, effect: SendRecoveryRead) -> RecoveryEvent:
        command = read_command(
            self._metadata,
            effect.first_entry_id,
            effect.last_entry_id,
            effect.stripe,
            max_entries=BATCH_ENTRIES_MAX,
            max_bytes=BATCH_SIZE_BYTES_MAX,
            fence=effect.fence,
        )
        try:
            incarnation = await self._incarnations.of(effect.bookie_id)
            channel = self._pool.connection(effect.bookie_id).channel()
            timeout = self._pool.settings.read_timeout_seconds
            # `patiently`, because a bookie may limit the rate of reads that do not fence.
            reply = await patiently(
                lambda: channel.read(command, timeout=timeout, incarnation=incarnation),
                self._pool.settings.rate_patience_seconds,
            )
        except BookieError as error:
            return RecoveryReadAnswered(effect.round, effect.slot, error.status, message=str(error))
        return read_answered(effect, verify_read(reply, self._encoder.digester))

    async def _add(self, effect: SendAdd) -> RecoveryEvent:
        bookie_id = effect.bookie_id
        if self._adds_behind[bookie_id] >= ADDS_BEHIND_MAX:
            status, message = Status.IO_ERROR, "earlier entries are not answered yet"
        else:
            self._adds_behind[bookie_id] += 1
            try:
                status, message = await self._store(effect)
            finally:
                self._adds_behind[bookie_id] -= 1
        if status is not Status.OK:
            self._failing.add(bookie_id)
        return RecoveryAddAnswered(effect.round, effect.slot, status, message)

    async def _store(self, effect: SendAdd) -> tuple[Status, str]:
        request_id, data = self._encoder.entries(effect.batch, recovery=True)
        seconds = self._pool.settings.add_timeout_seconds
        try:
            incarnation = await self._incarnations.of(effect.bookie_id)
            lane = self._pool.connection(effect.bookie_id).recovery(incarnation)
            async with asyncio.timeout(seconds):
                return await lane.request(request_id, data)
        except TimeoutError:
            return Status.IO_ERROR, f"no answer within {seconds:g} s"
        except BookieError as error:
            return error.status, str(error)

    async def _choose(self, effect: ChooseNewcomers) -> RecoveryEvent:
        chosen = self._ensembles.newcomers(
            effect.bookies,
            list(slots_of(effect.slots)),
            self._metadata.write_quorum_size,
            excluded=self._failing,
        )
        newcomers = {
            slot: bookie_id for slot, bookie_id in chosen.items() if await self._meet(bookie_id)
        }
        _log.info(
            "recovery_newcomers",
            ledger_id=self._ledger_id,
            replaced=[effect.bookies[slot] for slot in slots_of(effect.slots)],
            newcomers=sorted(newcomers.values()),
        )
        return NewcomersChosen(newcomers)

    async def _meet(self, bookie_id: str) -> bool:
        """Read a newcomer's incarnation before its first request; return False if this fails.

        The driver remembers this incarnation until the close, because another incarnation of the
        newcomer may have lost acknowledged entries.
        """
        try:
            found = await self._cookies.read_latest(bookie_id)
        except BookieError as error:
            _log.warning("newcomer_unknown", bookie_id=bookie_id, reason=str(error))
            return False
        if found is None:
            self._failing.add(bookie_id)
            return False
        self._incarnations.known[bookie_id] = found.value.incarnation
        return True

    async def _publish(self, effect: PublishNewcomers) -> RecoveryEvent:
        """Write the metadata of the closed ledger, unless a newcomer's cookie has changed."""
        conditions = []
        lost = []
        try:
            for bookie_id in effect.newcomers:
                found = await self._cookies.read_latest(bookie_id)
                if found is None or found.value.incarnation != self._incarnations.known[bookie_id]:
                    lost.append(bookie_id)
                else:
                    conditions.append(self._cookies.unchanged(bookie_id, found.version))
            if lost:
                return NewcomersLost(tuple(lost))
            written = await self._ledgers.write(effect.metadata, effect.version, conditions)
        except BadVersionError:
            # Either the ledger or a newcomer's cookie has changed. A cookie also changes at each
            # start of its bookie.
            return MetadataConflict()
        except BookieError as error:
            return MetadataFailed(error)
        return MetadataWritten(written.version)


def fence_answered(effect: SendFence, told: VerifiedLac) -> FenceAnswered:
    """Create the event for a verified answer to a fence."""
    lac, last = told.last_add_confirmed, told.last_entry_id
    return FenceAnswered(
        effect.round, effect.slot, told.status, lac, last, told.last_length, told.message
    )


def read_answered(effect: SendRecoveryRead, told: VerifiedRead) -> RecoveryReadAnswered:
    """Create the event for a verified answer to a read."""
    head = effect.round, effect.slot, told.status, told.batch
    return RecoveryReadAnswered(*head, told.next_entry_id, told.stopped_by, told.message)


async def _sleep(timer: TimerId, seconds: float) -> RecoveryEvent:
    await asyncio.sleep(seconds)
    return TimerFired(timer)
