"""The checker of ledger histories is checked: it blames no valid one and finds each corruption."""

from __future__ import annotations

import functools
import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.ledger_history import bookie_corruptions, reading_corruptions
from tests.ledger_history.ledger_checker import (
    HistoryVerdict,
    assert_valid,
    check_ledgers,
)
from tests.ledger_history.ledger_corruptions import LEDGER_CORRUPTIONS
from tests.ledger_history.ledger_events import (
    AppendEvent,
    BookieEvent,
    BookieEventKind,
    DeleteEvent,
    EntryCopy,
    EventOutcome,
    FinalFragment,
    FinalLedger,
    FinalLedgerState,
    FinalState,
    ForceEvent,
    HistoryRecorder,
    LedgerHistory,
    OpenEvent,
    PayloadDigest,
    ReadEvent,
    copies_of,
    digest_of,
)
from tests.ledger_history.ledger_model import LedgerModel
from tests.ledger_history.ledger_view import Findings, Violation
from tests.ledger_history.log_checker import LogAppend, LogHistory, check_log

SEEDS, SEEDS_OF_A_SOAK = 300, 10_000
CORRUPTED_SEEDS = range(120)
APPLIED_MIN = 3
"""How many of the histories each corruption has to damage."""


@functools.cache
def modelled(seed: int) -> tuple[LedgerHistory, Counter[str]]:
    """A valid history, and what odd things it has."""
    model = LedgerModel(seed)
    return model.run(), model.counts


def test_no_valid_history_is_blamed(*, is_soak: bool) -> None:
    """Whatever the rules of the protocol leave open is accepted, and all of it happens."""
    counts: Counter[str] = Counter()
    for seed in range(SEEDS_OF_A_SOAK if is_soak else SEEDS):
        history, odd = modelled(seed)
        result = check_ledgers(history)
        assert result.verdict is HistoryVerdict.VALID, f"seed {seed}: {result.describe()}"
        counts += odd
    for odd_thing in (
        "recovered entries",
        "dropped entries",
        "append of unknown outcome",
        "info without an id",
        "acknowledged during or after a recovery",
        "ack behind a fence",
        "a LAC older than another",
        "copies elsewhere",
        "empty ledger",
        "recovery gave up",
        "lost disk",
        "too many disks lost",
        "ensemble change",
        "unavailable",
        "deletion",
    ):
        assert counts[odd_thing] >= APPLIED_MIN, counts


@pytest.mark.parametrize("name", sorted(LEDGER_CORRUPTIONS))
def test_each_corruption_is_found(name: str) -> None:
    """By the rule that it breaks, in every history that it could damage."""
    corruption = LEDGER_CORRUPTIONS[name]
    applied = 0
    for seed in CORRUPTED_SEEDS:
        history, _ = modelled(seed)
        corrupted = corruption.apply(history, random.Random(seed))
        if corrupted is None:
            continue
        applied += 1
        assert corrupted != history
        result = check_ledgers(corrupted)
        assert result.verdict is HistoryVerdict.INVALID, f"seed {seed}"
        assert corruption.rule in result.rules, f"seed {seed}: {result.describe()}"
        assert all(len(one.witness) <= 10 for one in result.violations)
    assert applied >= APPLIED_MIN


def test_there_is_a_corruption_for_each_rule() -> None:
    """C15 has its own, below."""
    rules = {corruption.rule for corruption in LEDGER_CORRUPTIONS.values()}
    assert rules == {f"C{number}" for number in range(1, 17)} - {"C15"}
    assert len(LEDGER_CORRUPTIONS) >= 30
    for module in (bookie_corruptions, reading_corruptions):
        assert module.LEDGER_CORRUPTIONS is LEDGER_CORRUPTIONS


def test_the_same_history_is_judged_alike() -> None:
    """Violations are sorted, and a seed replays its history."""
    history, _ = modelled(1)
    assert LedgerModel(1).run() == history
    corrupted = LEDGER_CORRUPTIONS["the_length_is_wrong"].apply(history, random.Random(1))
    corrupted = history if corrupted is None else corrupted
    violations = check_ledgers(corrupted).violations
    assert violations == check_ledgers(corrupted).violations
    rules = [int(violation.rule[1:]) for violation in violations]
    assert rules == sorted(rules)


# ---- histories by hand


def closed(*payloads: bytes, ledger_id: int = 1) -> FinalLedger:
    """A closed ledger on one bookie that holds these payloads."""
    entries = copies_of(enumerate(payloads))
    return FinalLedger(
        ledger_id=ledger_id,
        state=FinalLedgerState.CLOSED,
        last_entry_id=len(payloads) - 1,
        length=sum(len(payload) for payload in payloads),
        fragments=(FinalFragment(0, ("b1",)),),
        entries=entries,
        copies={"b1": dict(entries)},
    )


def recorder() -> HistoryRecorder:
    """A recorder whose clock stands still: only the order counts."""
    return HistoryRecorder(lambda: 0.0)


def append_of(*payloads: bytes) -> AppendEvent:
    """An append by the writer of ledger 1."""
    digests = tuple(digest_of(payload) for payload in payloads)
    return AppendEvent(process="w", ledger_id=1, handle="w", digests=digests)


def judged(recorded: HistoryRecorder, *ledgers: FinalLedger) -> tuple[Violation, ...]:
    """The violations of what was recorded."""
    return check_ledgers(recorded.history(FinalState(ledgers=ledgers))).violations


def test_a_recovered_append_keeps_its_place() -> None:
    """Two appends of unknown outcome: both were recovered, in their order."""
    recorded = recorder()
    for payload in (b"a", b"b"):
        recorded.invoke(append_of(payload)).info(TimeoutError())
    assert not judged(recorded, closed(b"a", b"b"))
    (violation, *_) = judged(recorded, closed(b"b", b"a"))
    assert violation.rule == "C3"


def test_an_append_has_one_place() -> None:
    """The same unknown append under two ids: one of them is a phantom."""
    recorded = recorder()
    recorded.invoke(append_of(b"a"))
    assert {one.rule for one in judged(recorded, closed(b"a", b"a"))} == {"C1"}


def test_an_operation_that_never_returned_is_unknown() -> None:
    """It may be there or not; a later append may have the next id or the same."""
    for payloads in ((b"a", b"b"), (b"b",)):
        recorded = recorder()
        recorded.invoke(append_of(b"a"))
        recorded.invoke(append_of(b"b")).ok(entry_ids=(len(payloads) - 1,))
        assert not judged(recorded, closed(*payloads))


def test_a_lac_inside_a_batch_may_come_before_its_ack() -> None:
    """The first entries of a long append may be confirmed before all of it is."""
    for lac, is_right in ((1, True), (2, False)):
        recorded = recorder()
        append = recorded.invoke(append_of(b"a", b"b", b"c"))
        opened = recorded.invoke(OpenEvent(process="r", ledger_id=1, handle="r"))
        opened.ok(last_entry_id=lac)
        append.ok(entry_ids=(0, 1, 2))
        violations = judged(recorded, closed(b"a", b"b", b"c"))
        assert [one.rule for one in violations] == ([] if is_right else ["C8"])


def test_a_denial_needs_no_excuse_beyond_the_lac() -> None:
    """Another reader's LAC says nothing about this one's."""
    recorded = recorder()
    recorded.invoke(append_of(b"a")).ok(entry_ids=(0,))
    recorded.invoke(OpenEvent(process="r", ledger_id=1, handle="new")).ok(last_entry_id=0)
    recorded.invoke(OpenEvent(process="r", ledger_id=1, handle="old")).ok()
    for handle, rules in (("old", []), ("new", ["C10"])):
        read = ReadEvent(process="r", ledger_id=1, handle=handle, first=0, last=0)
        recorded.invoke(read).fail(LookupError(), denied=0)
        assert [one.rule for one in judged(recorded, closed(b"a"))] == rules


def test_bookies_may_have_time_to_learn_of_a_deletion() -> None:
    """An append to a deleted ledger succeeds no longer than the history allows."""
    gone = FinalLedger(ledger_id=1, state=FinalLedgerState.DELETED)
    now = 0.0
    recorded = HistoryRecorder(lambda: now)
    recorded.invoke(DeleteEvent(process="o", ledger_id=1)).ok()
    now = 5.0
    recorded.invoke(append_of(b"a")).ok(entry_ids=(0,))
    for grace, rules in ((6.0, frozenset[str]()), (5.0, {"C14"}), (0.0, {"C14"})):
        final = FinalState(ledgers=(gone,))
        history = recorded.history(final, deletion_grace_seconds=grace)
        assert check_ledgers(history).rules == rules


def test_deferred_sync_promises_what_a_force_covers() -> None:
    """Of two acknowledged appends only the first was forced: the second may be lost."""
    for payloads, forced, rules in (
        ((b"a", b"b"), True, set[str]()),
        ((b"a",), True, set[str]()),
        ((), True, {"C4", "C6"}),
        ((), False, set[str]()),
        ((b"b",), False, {"C1"}),
    ):
        recorded = recorder()
        for number, payload in enumerate((b"a", b"b")):
            append = replace(append_of(payload), is_deferred=True)
            recorded.invoke(append).ok(entry_ids=(number,))
            if forced and number == 0:
                recorded.invoke(ForceEvent(process="w", ledger_id=1, handle="w")).ok()
        assert rules <= {one.rule for one in judged(recorded, closed(*payloads))}
        assert bool(rules) == bool(judged(recorded, closed(*payloads)))


KIND = BookieEventKind
WRITTEN = (KIND.ACCEPT, KIND.DEFERRED_ADD_ACK)
SYNCED = (KIND.SYNC_BEGIN, KIND.SYNC_END)
LATE_ACK = (KIND.ACCEPT, KIND.LEDGER_DELETED, KIND.DEFERRED_ADD_ACK)


@pytest.mark.parametrize(
    ("kinds", "began", "message"),
    [
        ((*WRITTEN, KIND.START, KIND.NO_SUCH_ENTRY), -1, ""),
        ((*WRITTEN, KIND.NO_SUCH_ENTRY), -1, "denies an entry"),
        ((*WRITTEN, KIND.NO_SUCH_ENTRY), 1, "denies an entry"),
        ((*WRITTEN, KIND.NO_SUCH_ENTRY), 0, ""),
        ((*WRITTEN, KIND.NO_SUCH_ENTRY_FENCING), 0, "denies an entry"),
        ((*WRITTEN, KIND.FORCE_ACK), 1, "force was answered before the sync"),
        ((*WRITTEN, KIND.FORCE_ACK), 0, ""),
        ((*WRITTEN, *SYNCED, KIND.FORCE_ACK, KIND.START, KIND.NO_SUCH_ENTRY), 2, "denies an entry"),
        ((*WRITTEN, *SYNCED, KIND.FORCE_ACK, KIND.START, KIND.NO_SUCH_ENTRY), 0, ""),
        ((KIND.FENCE_ACK, *WRITTEN), -1, "after the fence"),
        ((KIND.DEFERRED_ADD_ACK,), -1, "never accepted"),
        ((*WRITTEN, KIND.LEDGER_DELETED, KIND.NO_SUCH_ENTRY), -1, ""),
        ((*WRITTEN, KIND.LEDGER_DELETED, KIND.FORCE_ACK, KIND.NO_SUCH_ENTRY), 3, ""),
        ((KIND.FENCE_ACK, KIND.LEDGER_DELETED, KIND.START, *WRITTEN), -1, "after the fence"),
        ((*LATE_ACK, KIND.NO_SUCH_ENTRY_FENCING), -1, ""),
        ((*LATE_ACK, *SYNCED, KIND.FORCE_ACK, KIND.NO_SUCH_ENTRY), 5, ""),
        ((*LATE_ACK, KIND.START, KIND.DEFERRED_ADD_ACK, KIND.NO_SUCH_ENTRY), -1, "denies an entry"),
        ((KIND.LEDGER_DELETED, *WRITTEN, KIND.NO_SUCH_ENTRY), -1, "denies an entry"),
        ((KIND.DISK_DESTROYED, KIND.DEFERRED_ADD_ACK), -1, ""),
    ],
)
def test_bookies_keep_their_word_with_deferred_sync(
    kinds: tuple[BookieEventKind, ...], began: int, message: str
) -> None:
    """Each START begins another life. `began` is that of the event before a request."""
    recorded, epoch = recorder(), 0
    for kind in kinds:
        epoch += kind is KIND.START
        recorded.bookie(
            BookieEvent(bookie_id="b", kind=kind, epoch=epoch, ledger_id=1, entry_id=0, began=began)
        )
    told = [one.message for one in judged(recorded, closed()) if one.rule == "C16"]
    assert len(told) == bool(message)
    assert all(message in one for one in told)


def test_what_the_harness_leaves_out_is_unknown() -> None:
    """An unknown verdict is no pass: each reason is named."""
    recorded = recorder()
    recorded.invoke(append_of(b"a")).ok(entry_ids=(0,))
    unread = replace(closed(b"a"), entries=None)
    for ledgers in ((), (unread,)):
        result = check_ledgers(recorded.history(FinalState(ledgers=ledgers)))
        assert result.verdict is HistoryVerdict.UNKNOWN
        assert result.troubles
    recorded.trouble("a client died")
    history = recorded.history(FinalState(ledgers=(closed(b"a"),)))
    assert check_ledgers(history).verdict is HistoryVerdict.UNKNOWN
    with pytest.raises(AssertionError, match="a client died"):
        assert_valid(history)


def test_payloads_that_are_not_unique_are_the_harness_fault() -> None:
    """No rule about contents could tell them apart."""
    recorded = recorder()
    for number in (0, 1):
        recorded.invoke(append_of(b"same")).ok(entry_ids=(number,))
    result = check_ledgers(recorded.history(FinalState(ledgers=(closed(b"same", b"same"),))))
    assert any("not unique" in trouble for trouble in result.troubles)


def test_an_operation_ends_once() -> None:
    """A harness that ends one twice has a bug."""
    invocation = recorder().invoke(append_of(b"a"))
    invocation.ok(entry_ids=(0,))
    with pytest.raises(AssertionError):
        invocation.info()


def test_many_events_take_little_time() -> None:
    """Fifty thousand appends and as many reads: no rule compares each with each."""
    recorded = recorder()
    payloads = [b"%d" % number for number in range(50_000)]
    opened = recorded.invoke(OpenEvent(process="r", ledger_id=1, handle="r"))
    opened.ok()
    for number, payload in enumerate(payloads):
        recorded.invoke(append_of(payload)).ok(entry_ids=(number,))
        read = ReadEvent(process="r", ledger_id=1, handle="r", first=number, last=number)
        copy = EntryCopy(number, digest_of(payload))
        recorded.invoke(read).ok(entries=(copy,))
    assert not judged(recorded, closed(*payloads))


# ---- C15

ONE, TWO, THREE = digest_of(b"one"), digest_of(b"two"), digest_of(b"three")


def log_of(
    *ledgers: tuple[PayloadDigest, ...], **consumers: tuple[PayloadDigest, ...]
) -> LogHistory:
    """A producer appended three records: the first two were acknowledged."""
    outcomes = (EventOutcome.OK, EventOutcome.OK, EventOutcome.INFO)
    return LogHistory(
        appends=tuple(
            LogAppend("p", number, digest, outcome)
            for number, (digest, outcome) in enumerate(
                zip((ONE, TWO, THREE), outcomes, strict=True)
            )
        ),
        ledgers=tuple(enumerate(ledgers)),
        consumers=consumers,
    )


@pytest.mark.parametrize(
    ("history", "is_valid"),
    [
        (log_of((ONE,), (TWO,)), True),
        (log_of((ONE, TWO), (THREE,)), True),
        (log_of((), (ONE,), (), (TWO, THREE)), True),
        (log_of((ONE, TWO), (THREE,), a=(ONE,), b=(ONE, TWO, THREE), c=()), True),
        (replace(log_of((ONE, TWO), (TWO, THREE)), is_idempotent=False), True),
        (log_of((ONE,)), False),
        (log_of((ONE, TWO), (TWO,)), False),
        (log_of((TWO,), (ONE,)), False),
        (log_of((ONE, TWO), (digest_of(b"four"),)), False),
        (log_of((ONE, TWO), a=(ONE, TWO), b=(TWO,)), False),
        (log_of((ONE, TWO), a=(ONE, TWO, THREE)), False),
    ],
)
def test_a_log_has_each_record_once_and_in_order(*, history: LogHistory, is_valid: bool) -> None:
    """C15: lost, repeated, reordered and invented records, and consumers who differ."""
    findings = Findings()
    check_log(history, findings)
    assert {one.rule for one in findings.violations} == (set() if is_valid else {"C15"})
