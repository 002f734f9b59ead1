"""Explains how a recovery would end, without a change of the ledger.

An explanation changes nothing: bookies, metadata and entries stay as they are. The explanation asks
the bookies of the last ensemble for their LAC, for information about themselves, and for entries
beyond the LAC. With these answers, `RecoveryForecast` runs the state machine of a recovery.

The first answers determine a **horizon**: the highest entry that any of these bookies has. Entries
that a live writer adds beyond the horizon are ignored, so that the explanation ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from bookie.entry.digest import digester_for_key
from bookie.env import gather
from bookie.errors import BookieError, BookieUnreachableError, OperationTimeoutError
from bookie.ids import BATCH_SIZE_BYTES_MAX, NO_ENTRY, Status
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.exchange import ChooseNewcomers, NewcomersChosen
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.ensembles import Ensembles, Incarnations
from bookie.ledger.quorum import slots_of
from bookie.ledger.read.verification import (
    VerifiedLac,
    list_stored,
    read_command,
    verify_lac,
    verify_read,
)
from bookie.ledger.recover.driver import fence_answered, read_answered
from bookie.ledger.recover.explanation import LedgerExplanation, Outcome, SlotFindings, tail_of
from bookie.ledger.recover.recovery_events import RecoveryReadAnswered, SendFence, SendRecoveryRead
from bookie.ledger.recover.recovery_forecast import (
    ForecastAnswer,
    Question,
    RecoveryForecast,
    WouldClose,
    highest_first,
    lowest_first,
)
from bookie.ledger.write.pending import BATCH_ENTRIES_MAX
from bookie.metadata.versioned import Versioned

_NO_ANSWER = "no answer"

RANDOM_ORDERS = 30
"""For a striped ledger: the number of random orders of the answers to try, besides the two extreme
orders."""

_Order = Callable[[ForecastAnswer], tuple[bool, float]]
"""A sort key that decides in which order the answers of a round arrive."""


async def explain_ledger(
    found: Versioned[LedgerMetadata], pool: BookiePool, ensembles: Ensembles
) -> LedgerExplanation:
    """Ask the bookies of the last ensemble, and forecast the decision of a recovery.

    Raises:
        MetadataError: the metadata store failed.
    """
    metadata = found.value
    if metadata.is_closed:
        closed = WouldClose(metadata.last_entry_id, metadata.length)
        return LedgerExplanation(metadata, found.version, (closed,))
    inquiry = _Inquiry(metadata, pool, ensembles)
    await inquiry.probe_all()
    outcomes = [await inquiry.forecast(found.version, order) for order in _orders(metadata)]
    return LedgerExplanation(
        metadata,
        found.version,
        tuple(outcomes),
        tuple(probe.findings for probe in inquiry.probes),
        inquiry.last_add_confirmed,
        tail_of(await inquiry.held()),
        inquiry.reasons,
    )


def _orders(metadata: LedgerMetadata) -> Iterator[_Order]:
    """Yield the orders in which simulated recoveries get the answers of each round."""
    yield lowest_first
    yield highest_first
    if metadata.ensemble_size > metadata.write_quorum_size:
        dice = random.Random(metadata.ledger_id)  # noqa: S311  (equal answers, equal words)
        for _ in range(RANDOM_ORDERS):
            yield lambda _: (True, dice.random())


@dataclass(frozen=True, slots=True)
class _Probe:
    """The first answers of one bookie of the last ensemble."""

    findings: SlotFindings
    lac: VerifiedLac
    is_reachable: bool
    """True if the bookie answers with the incarnation that a recovery accepts."""
    last_listed_id: int = NO_ENTRY
    """The last entry that the bookie lists as stored; a listing is no proof."""


class _Inquiry:
    """Asks the bookies of one ledger; asks each question only once."""

    def __init__(self, metadata: LedgerMetadata, pool: BookiePool, ensembles: Ensembles) -> None:
        self.probes: list[_Probe] = []
        self.reasons: dict[str, str] = {}
        self._metadata = metadata
        self._pool = pool
        self._ensembles = ensembles
        self._digester = digester_for_key(metadata.digest_type, metadata.password_key)
        self._timeout = pool.settings.read_timeout_seconds
        self._incarnations = Incarnations(ensembles.cookies)
        self._horizon = NO_ENTRY
        self._reads: dict[tuple[str, int, int], RecoveryReadAnswered] = {}

    async def forecast(self, version: int, order: _Order) -> Outcome:
        """Run one simulated recovery that gets the answers of each round in this order."""
        forecast = RecoveryForecast(self._metadata, version, self._stores)
        questions = forecast.begin()
        while forecast.outcome is None:
            assert questions, "a recovery that has not ended waits for something"
            answers = sorted(await gather(map(self._ask, questions)), key=order)
            questions = [question for answer in answers for question in forecast.answer(answer)]
        return forecast.outcome

    async def _ask(self, question: Question) -> ForecastAnswer:
        match question:
            case SendFence():
                return fence_answered(question, self.probes[question.slot].lac)
            case SendRecoveryRead():
                return await self._read(question)
            case ChooseNewcomers():
                return await self._choose(question)

    def _stores(self, bookie_id: str) -> bool:
        probes = {probe.findings.bookie_id: probe for probe in self.probes}
        return probes[bookie_id].is_reachable

    # -- first answers -----------------------------------------------------------------------------

    async def probe_all(self) -> None:
        """Ask every bookie of the last ensemble for its LAC and for information about itself."""
        bookies = self._metadata.last_fragment.bookies
        self.probes = await gather(self._probe(slot, name) for slot, name in enumerate(bookies))
        self._horizon = max(
            max(probe.lac.last_entry_id, probe.last_listed_id) for probe in self.probes
        )

    async def _probe(self, slot: int, bookie_id: str) -> _Probe:
        directory = self._ensembles.directory
        registered = directory.all().get(bookie_id)
        registration = "none"
        if registered is not None:
            registration = "writable" if bookie_id in directory.bookies() else "read-only"
        findings = SlotFindings(
            slot,
            bookie_id,
            registration,
            _NO_ANSWER,
            is_definite=False,
            registered_incarnation="" if registered is None else registered.incarnation,
        )
        try:
            believed = await self._incarnations.of(bookie_id)
            findings = replace(findings, cookie_incarnation=believed)
            channel = self._pool.connection(bookie_id).channel()
            info = await channel.info(timeout=self._timeout)
            findings = replace(findings, incarnation=info.incarnation)
            reply = await channel.read_lac(
                self._metadata.ledger_id,
                self._metadata.password_key,
                timeout=self._timeout,
                incarnation=believed,
            )
        except BookieError as error:
            reason = self._remember(bookie_id, _reason_of(error))
            lac = VerifiedLac(error.status, message=str(error))
            return _Probe(replace(findings, answer=reason), lac, is_reachable=False)
        lac = verify_lac(self._metadata.ledger_id, reply, self._digester)
        is_definite = lac.status is Status.OK or lac.status.is_definite_negative
        answer = "ok" if lac.status is Status.OK else _words(lac.status, lac.message)
        if not is_definite:
            self._remember(bookie_id, answer)
        known = max(reply.max_lac, lac.last_add_confirmed)
        findings = replace(
            findings,
            answer=answer,
            is_definite=is_definite,
            fenced=reply.fenced,
            last_add_confirmed=None if known == NO_ENTRY else known,
            last_entry_id=None if lac.last_entry_id == NO_ENTRY else lac.last_entry_id,
        )
        if lac.status is Status.UNAUTHORIZED:
            return _Probe(findings, lac, is_reachable=False)
        listed = [] if is_definite else await self._listed(bookie_id)
        return _Probe(findings, lac, True, listed[-1][1] if listed else NO_ENTRY)

    def _remember(self, bookie_id: str, reason: str) -> str:
        self.reasons[bookie_id] = reason
        return reason

    # -- entries -----------------------------------------------------------------------------------

    async def _read(self, effect: SendRecoveryRead) -> RecoveryReadAnswered:
        """Answer a recovery's read by a read that does not fence and ends at the horizon."""
        key = effect.bookie_id, effect.first_entry_id, effect.last_entry_id
        if key not in self._reads:
            self._reads[key] = await self._read_once(effect)
        return replace(self._reads[key], round=effect.round, slot=effect.slot)

    async def _read_once(self, effect: SendRecoveryRead) -> RecoveryReadAnswered:
        name, stripe = effect.bookie_id, effect.stripe
        last = effect.last_entry_id
        wanted = stripe.next_id(effect.first_entry_id)
        if effect.fence:  # only the last ensemble, which `probes` describes, gets fencing reads
            probe = self.probes[effect.slot]
            if not probe.is_reachable:
                return _unread(effect, probe.lac.status, probe.lac.message)
            if wanted <= self._horizon:
                last = self._horizon
            elif probe.findings.is_definite:
                # The bookie's first answer denied every entry beyond the bookie's last entry.
                return _unread(effect, Status.NO_SUCH_ENTRY)
        command = read_command(
            self._metadata,
            effect.first_entry_id,
            last,
            stripe,
            max_entries=BATCH_ENTRIES_MAX,
            max_bytes=BATCH_SIZE_BYTES_MAX,
        )
        try:
            reply = await self._pool.connection(name).channel().read(
                command, timeout=self._timeout, incarnation=await self._incarnations.of(name)
            )  # fmt: skip
        except BookieError as error:
            self._remember(name, _reason_of(error))
            return _unread(effect, error.status, str(error))
        told = verify_read(reply, self._digester)
        if effect.fence and told.batch is not None and wanted > self._horizon:
            return _unread(effect, Status.IO_ERROR, "entries came while this was asked")
        problem = told.status if told.status is not Status.OK else told.stopped_by
        if problem is not Status.OK and not problem.is_definite_negative:
            self._remember(name, _words(problem, told.message))
        return read_answered(effect, told)

    async def held(self) -> Mapping[str, list[tuple[int, int]]]:
        """Return the ranges of ids beyond the LAC that each bookie lists as stored."""
        lac = self.last_add_confirmed
        if lac >= self._horizon:
            return {}
        reachable = [probe.findings.bookie_id for probe in self.probes if probe.is_reachable]
        listed = await gather(self._listed(name, lac + 1, self._horizon) for name in reachable)
        return dict(zip(reachable, listed, strict=True))

    async def _listed(
        self, bookie_id: str, first: int = 0, last: int = NO_ENTRY
    ) -> list[tuple[int, int]]:
        """Return the ranges of ids that a bookie lists as stored; none if it does not answer."""
        try:
            return await list_stored(self._pool, bookie_id, self._metadata, first, last)
        except BookieError as error:
            self._remember(bookie_id, _reason_of(error))
            return []

    @property
    def last_add_confirmed(self) -> int:
        """Return the highest proven LAC, or, if higher, the entry before the last fragment."""
        before = self._metadata.last_fragment.first_entry_id - 1
        return max(before, *(probe.lac.last_add_confirmed for probe in self.probes))

    # -- newcomers ---------------------------------------------------------------------------------

    async def _choose(self, effect: ChooseNewcomers) -> NewcomersChosen:
        """Choose newcomers as a recovery would; bookies without an incarnation are omitted."""
        failing = [probe.findings.bookie_id for probe in self.probes if not probe.is_reachable]
        chosen = self._ensembles.newcomers(
            effect.bookies,
            list(slots_of(effect.slots)),
            self._metadata.write_quorum_size,
            excluded=failing,
        )
        return NewcomersChosen(
            {slot: name for slot, name in chosen.items() if await self._incarnations.of(name)}
        )


def _unread(effect: SendRecoveryRead, status: Status, message: str = "") -> RecoveryReadAnswered:
    """Create an answer without entries, whose `next_entry_id` is the first wanted id."""
    wanted = effect.stripe.next_id(effect.first_entry_id)
    return RecoveryReadAnswered(
        effect.round, effect.slot, status, next_entry_id=wanted, message=message
    )


def _reason_of(error: BookieError) -> str:
    if isinstance(error, BookieUnreachableError | OperationTimeoutError):
        return _NO_ANSWER
    return _words(error.status, str(error))


def _words(status: Status, message: str) -> str:
    match status:
        case Status.UNKNOWN_LEDGER_STATE:
            return "in limbo"
        case Status.WRONG_INCARNATION:
            return "another incarnation"
        case Status.NO_SUCH_LEDGER:
            return "no such ledger"
        case _:
            return message or status.name.lower().replace("_", " ")
