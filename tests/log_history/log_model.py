"""Histories of logs that are odd and right: whatever the rules leave open happens in them.

The model keeps what each partition contains, and draws what clients are told. `counts` says which
odd things a history has.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import (
    AnyLogEvent,
    BatchPublished,
    CursorCommitted,
    CursorReset,
    CursorSeen,
    CursorTaken,
    FinalPartition,
    LogTruncated,
    ReadingBegan,
    ReadingEnded,
    RecordedLogs,
    RecordsAppended,
    RecordsRead,
    SeenRecord,
)

OK, FAIL, INFO = EventOutcome.OK, EventOutcome.FAIL, EventOutcome.INFO

ENTRIES_OF_A_LEDGER = 7


@dataclass(slots=True)
class ModelPartition:
    """What one partition contains, and who works on it."""

    name: str
    entries: list[tuple[str, str | None] | None] = field(default_factory=list)
    """Values with their keys; None is a control record."""
    start: int = 0
    epoch: int = 0
    owner: str = ""
    former: list[str] = field(default_factory=list)
    sequence: int = 0
    """The next number of the partition's producer."""
    unknown: RecordsAppended | None = None
    """The producer's last append, if it has to be sent again."""
    sent: list[RecordsAppended] = field(default_factory=list)
    """What the producer was told."""
    cursor_epoch: int = 0
    cursor_offset: int = 0
    cursor_version: int = 0
    holder: str = ""
    handled: int = 0

    def seen(self, start: int, stop: int) -> tuple[SeenRecord, ...]:
        """The records of these offsets."""
        return tuple(
            SeenRecord(at, *found, at // ENTRIES_OF_A_LEDGER, at % ENTRIES_OF_A_LEDGER)
            for at in range(max(start, self.start), stop)
            if (found := self.entries[at]) is not None
        )


class LogModel:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.events: list[AnyLogEvent] = []
        self.partitions = [ModelPartition("orders#0"), ModelPartition("orders#1")]
        self.published = [ModelPartition("sales#0"), ModelPartition("sales#1")]
        self.batch = 0
        self._now = 0
        self._names = 0

    def run(self, steps: int = 150) -> RecordedLogs:
        """Draw a whole history."""
        for one in self.partitions:
            self._take_over(one)
        work = (
            [self._append] * 6
            + [self._append_numbered] * 4
            + [self._read] * 3
            + [self._consume] * 4
            + [self._take_over, self._reset, self._control]
        )
        for _ in range(steps):
            self.rng.choice(work)(self.rng.choice(self.partitions))
            if self.rng.random() < 0.2:
                self._publish()
            if self.rng.random() < 0.02:
                self._truncate(self.rng.choice([*self.partitions, self.published[0]]))
        for one in (*self.partitions, *self.published):
            self._read(one, is_whole=True)
        order = list(self.events)
        self.rng.shuffle(order)  # nothing depends on when an event was reported
        order.sort(key=lambda one: one.called)
        return RecordedLogs(tuple(order), tuple(map(self._final, self._all())))

    def _all(self) -> list[ModelPartition]:
        return [*self.partitions, *self.published]

    def _final(self, one: ModelPartition) -> FinalPartition:
        return FinalPartition(
            one.name,
            one.start,
            len(one.entries),
            one.seen(one.start, len(one.entries)),
            frozenset(at for at in range(one.start, len(one.entries)) if one.entries[at] is None),
            is_transactional=one in self.published,
        )

    def _tick(self) -> int:
        self._now += 10
        return self._now

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}-{self._names}"

    # ---- writers

    def _take_over(self, one: ModelPartition) -> None:
        """A new owner; the former one may still believe that it is."""
        self.counts["takeover"] += 1
        if one.owner and self.rng.random() < 0.7:
            one.former.append(one.owner)
            self._append_of_the_former(one)
        one.epoch += 1
        one.owner = f"writer of {one.name} in {one.epoch}"
        self._tick()

    def _append_of_the_former(self, one: ModelPartition) -> None:
        """Called before the takeover, never acknowledged; it is recovered, or not."""
        values = (self._name("v"),)
        if self.rng.random() < 0.5:
            one.entries += [(value, None) for value in values]
            self.counts["recovered at a takeover"] += 1
        self.events.append(
            RecordsAppended(
                partition=one.name,
                handle=one.owner,
                epoch=one.epoch,
                called=self._tick(),
                values=values,
                error="LogTakenOverError",
                returned=self._tick() + 5000,
            )
        )

    def _append(self, one: ModelPartition) -> None:
        """Several calls at once: their order is that of the records, answers come in any order."""
        for _ in range(self.rng.randrange(1, 4)):
            values = tuple(self._name("v") for _ in range(self.rng.randrange(1, 4)))
            keys = tuple(self._key(one) for _ in values)
            outcome = self.rng.choice([OK, OK, OK, INFO, FAIL])
            written = {OK: len(values), FAIL: 0}.get(outcome, self.rng.randrange(len(values) + 1))
            first = len(one.entries)
            one.entries += list(zip(values, keys, strict=True))[:written]
            if outcome is INFO:
                self.counts["unknown, written" if written else "unknown, not written"] += 1
                if 0 < written < len(values):
                    self.counts["a part of a batch"] += 1
            called = self._tick()
            self.events.append(
                RecordsAppended(
                    partition=one.name,
                    handle=one.owner,
                    epoch=one.epoch,
                    called=called,
                    returned=called + self.rng.randrange(1, 60),
                    outcome=outcome,
                    values=values,
                    keys=keys,
                    is_spread=True,
                    offsets=tuple(range(first, first + written)) if outcome is OK else (),
                )
            )
        self._now += 60

    def _key(self, one: ModelPartition) -> str:
        return f"key-{one.name[-1]}-{self.rng.randrange(3)}"

    def _append_numbered(self, one: ModelPartition) -> None:
        """A producer that sends again what is unknown, and sometimes what is known."""
        if one.unknown is None and one.sent and self.rng.random() < 0.2:
            again = self.rng.choice(one.sent)
            self.counts["duplicate answered"] += 1
            # Also a former owner may answer: the place is true.
            owner = self.rng.choice([one.owner, *one.former])
            called = self._tick()
            self.events.append(replace(again, handle=owner, called=called, returned=called + 5))
            return
        append = one.unknown or RecordsAppended(
            partition=one.name,
            values=(self._name("v"),),
            producer=f"shop-{one.name}",
            sequence=one.sequence,
        )
        places = {entry[0]: at for at, entry in enumerate(one.entries) if entry is not None}
        at = places.get(append.values[0])
        if at is not None:
            self.counts["retry of what was written"] += 1
        called = self._tick()
        append = replace(
            append, handle=one.owner, epoch=one.epoch, called=called, returned=called + 5
        )
        if self.rng.random() < 0.3:
            if at is None and self.rng.random() < 0.5:
                one.entries.append((append.values[0], None))
            one.unknown = append
            self.events.append(append)
            return
        if at is None:
            at = len(one.entries)
            one.entries.append((append.values[0], None))
        one.unknown = None
        one.sequence += self.rng.randrange(1, 3)
        told = replace(append, outcome=OK, offsets=(at,))
        self.events.append(told)
        one.sent.append(told)
        self._now += 10

    def _control(self, one: ModelPartition) -> None:
        self.counts["control record"] += 1
        one.entries.append(None)

    # ---- readers

    def _read(self, one: ModelPartition, *, is_whole: bool = False) -> None:
        """From anywhere, in batches of any size, to anywhere."""
        handle = self._name("reader")
        start = 0 if is_whole else self.rng.randrange(len(one.entries) + 1)
        stop = len(one.entries) if is_whole else self.rng.randrange(start, len(one.entries) + 1)
        if start < one.start:
            self.counts["a reader was truncated"] += 1
        event = ReadingBegan(
            partition=one.name, handle=handle, offset=start, called=self._tick(), outcome=OK
        )
        self.events.append(event)
        self._deliver(one, handle, start, stop)
        if is_whole or self.rng.random() < 0.5:
            end = ReadingEnded(
                partition=one.name,
                handle=handle,
                next_offset=stop,
                called=self._tick(),
                returned=self._now,
            )
            self.events.append(end)

    def _deliver(self, one: ModelPartition, handle: str, start: int, stop: int) -> None:
        while start < stop:
            end = min(stop, start + self.rng.randrange(1, 6))
            if records := one.seen(start, end):
                self.events.append(
                    RecordsRead(
                        partition=one.name,
                        handle=handle,
                        records=records,
                        called=self._tick(),
                        returned=self._now,
                        outcome=OK,
                    )
                )
            start = end

    def _truncate(self, one: ModelPartition) -> None:
        """The head is truncated before that offset or, if the truncation failed, not."""
        before = self.rng.randrange(one.start, len(one.entries) // 2 + one.start // 2 + 1)
        outcome = self.rng.choice([OK, INFO, FAIL])
        if outcome is OK or (outcome is INFO and self.rng.random() < 0.5):
            if before > one.start:
                self.counts["truncation"] += 1
            one.start = max(one.start, before)
        self.events.append(
            LogTruncated(
                partition=one.name,
                before=before,
                called=self._tick(),
                returned=self._tick(),
                outcome=outcome,
            )
        )

    # ---- consumers

    def _consume(self, one: ModelPartition) -> None:
        if not one.holder or self.rng.random() < 0.2:
            self._take_cursor(one)
        start = max(one.start, one.handled)
        stop = self.rng.randrange(start, len(one.entries) + 1)
        self._deliver(one, one.holder, start, stop)
        one.handled = stop
        outcome = self.rng.choice([OK, OK, INFO])
        offset = self.rng.randrange(one.cursor_offset, max(one.cursor_offset, stop) + 1)
        if outcome is OK or self.rng.random() < 0.5:
            if outcome is INFO:
                self.counts["unknown commit that counts"] += 1
            if offset > one.cursor_offset:
                one.cursor_offset = offset
                self._see_cursor(one)
        self.events.append(self._commit(one, one.holder, one.cursor_epoch, offset, outcome))

    def _commit(
        self, one: ModelPartition, holder: str, epoch: int, offset: int, outcome: EventOutcome
    ) -> CursorCommitted:
        return CursorCommitted(
            partition=one.name,
            handle=holder,
            cursor="billing",
            epoch=epoch,
            offset=offset,
            called=self._tick(),
            returned=self._tick(),
            outcome=outcome,
        )

    def _take_cursor(self, one: ModelPartition) -> None:
        if one.holder:
            self.counts["cursor taken over"] += 1
            late = self._commit(one, one.holder, one.cursor_epoch, len(one.entries), FAIL)
            self.events.append(replace(late, error="CursorLostError"))
        one.cursor_epoch += 1
        one.holder = self._name("consumer")
        one.handled = one.cursor_offset
        self.events.append(
            CursorTaken(
                partition=one.name,
                handle=one.holder,
                cursor="billing",
                epoch=one.cursor_epoch,
                offset=one.cursor_offset,
                called=self._tick(),
                returned=self._tick(),
                outcome=OK,
            )
        )
        self.events.append(
            ReadingBegan(
                partition=one.name,
                handle=one.holder,
                offset=one.cursor_offset,
                called=self._tick(),
                outcome=OK,
            )
        )
        self._see_cursor(one)

    def _see_cursor(self, one: ModelPartition) -> None:
        """A watch sees most changes of the record."""
        one.cursor_version += 1
        if self.rng.random() < 0.7:
            self.events.append(
                CursorSeen(
                    partition=one.name,
                    cursor="billing",
                    version=one.cursor_version,
                    epoch=one.cursor_epoch,
                    offset=one.cursor_offset,
                    called=self._tick(),
                    outcome=OK,
                )
            )

    def _reset(self, one: ModelPartition) -> None:
        if not one.holder:
            return
        before = one.cursor_epoch
        one.cursor_epoch += 1
        offset = self.rng.randrange(one.start, len(one.entries) + 1)
        if offset < one.cursor_offset:
            self.counts["reset that goes back"] += 1
        one.cursor_offset = offset
        one.holder = ""
        self._see_cursor(one)
        self.events.append(
            CursorReset(
                partition=one.name,
                cursor="billing",
                after_epoch=before,
                until_epoch=one.cursor_epoch,
                called=self._tick(),
                returned=self._tick(),
                outcome=OK,
            )
        )

    # ---- publishers

    def _publish(self) -> None:
        """A batch: at once, after some tries, dropped, or given up and written anew."""
        self.batch += self.rng.randrange(1, 3)
        values = self._ranges()
        is_there = False
        while True:
            outcome = self.rng.choice([OK, OK, INFO, FAIL])
            if outcome is OK:
                self._call(values, OK, was_new=not is_there)
                if is_there:
                    self.counts["batch published by an unknown try"] += 1
                else:
                    self._place(values)
                break
            if outcome is INFO and not is_there and self.rng.random() < 0.5:
                is_there = True
                self._place(values)
            self._call(values, outcome)
            if outcome is FAIL and not is_there and self.rng.random() < 0.5:
                self.counts["batch written anew"] += 1
                values = self._ranges()
        if self.rng.random() < 0.2:
            self.counts["batch dropped"] += 1
            self._call(self._ranges(), OK, was_new=False)

    def _ranges(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found = self.rng.sample(self.published, self.rng.randrange(1, 3))
        return tuple(
            (one.name, tuple(self._name("p") for _ in range(self.rng.randrange(1, 5))))
            for one in found
        )

    def _place(self, values: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
        by_name = {one.name: one for one in self.published}
        for partition, found in values:
            by_name[partition].entries += [(value, None) for value in found]

    def _call(
        self,
        values: tuple[tuple[str, tuple[str, ...]], ...],
        outcome: EventOutcome,
        *,
        was_new: bool = True,
    ) -> None:
        self.events.append(
            BatchPublished(
                partition="sales",
                handle="spark",
                application="spark",
                batch=self.batch,
                values=values,
                was_new=was_new,
                outcome=outcome,
                called=self._tick(),
                returned=self._tick(),
            )
        )
