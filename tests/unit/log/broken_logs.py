"""Logs with one bug each, made by replacing one thing that the product does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bookie.errors import MetadataUnavailableError
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.log_metadata import LogHead
from bookie.log.consume.commit import HeldCursor
from bookie.log.head.chain import end_offset, with_ledger
from bookie.log.head.head_keeper import HeadKeeper
from bookie.log.log_client import LogClient
from bookie.log.publish import publisher
from bookie.log.read import reader
from bookie.log.record.positions import PositionRun
from bookie.log.record.producers import ProducerWindows
from bookie.log.tidy import truncation
from bookie.log.tidy.retention import RetentionLimits, limits_of
from bookie.log.write import idempotence, partition_writer, takeover
from bookie.log.write.unconfirmed import Segment, Unconfirmed
from bookie.metadata.versioned import Versioned

Break = Callable[[pytest.MonkeyPatch], None]

_PartitionWriter = partition_writer.PartitionWriter
_Takeover = takeover._Takeover


def serves_before_it_is_in_the_chain(patch: pytest.MonkeyPatch) -> None:
    """The new ledger takes appends, and no head names it."""

    async def begin(self: Any, keeper: HeadKeeper, writer: Any) -> takeover.Ownership:
        return takeover.Ownership(keeper, writer, end_offset(keeper.head), ProducerWindows())

    patch.setattr(_Takeover, "_begin", begin)


def fences_before_it_claims(patch: pytest.MonkeyPatch) -> None:
    """The former owner adds another ledger in between, which stays open."""
    begin_epoch = _Takeover._begin_epoch

    async def fence_and_begin(self: Any, found: Versioned[LogHead]) -> HeadKeeper:
        for one in found.value.open_ranges:
            await self._close(one)
        latest = await self._client.logs.read_latest_head(self._partition, self._log_id)
        return await begin_epoch(self, latest)

    async def begin(self: Any, keeper: HeadKeeper, writer: Any) -> takeover.Ownership:
        head = await keeper.change(lambda head: with_ledger(head, writer.ledger_id))
        return takeover.Ownership(keeper, writer, end_offset(head), ProducerWindows())

    patch.setattr(_Takeover, "_begin_epoch", fence_and_begin)
    patch.setattr(_Takeover, "_begin", begin)


def fences_only_the_last_ledger(patch: pytest.MonkeyPatch) -> None:
    """Of two open ledgers, the older one stays open; its range ends where it was."""

    async def begin(self: Any, keeper: HeadKeeper, writer: Any) -> takeover.Ownership:
        before = keeper.head
        ends = [await self._close(one) for one in before.open_ranges[-1:]]
        head = await keeper.change(
            lambda head: with_ledger(
                replace(head, ranges=tuple(r for r in head.ranges if not r.is_open)),
                writer.ledger_id,
            )
        )
        assert len(ends) <= 1
        return takeover.Ownership(keeper, writer, end_offset(head), ProducerWindows())

    patch.setattr(_Takeover, "_begin", begin)


def switches_before_all_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    """Two ledgers have unconfirmed appends at the same time."""

    async def do_not_wait(self: Any) -> None:
        pass

    patch.setattr(_PartitionWriter, "_all_confirmed", do_not_wait)


def mends_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """Appends that are repeated come in reverse order."""
    append_again = _PartitionWriter._append_again

    def reverse(self: Any, broken: Segment, last_entry_id: int) -> None:
        self._unconfirmed = dict.fromkeys(reversed(list(self._unconfirmed)))
        append_again(self, broken, last_entry_id)

    patch.setattr(_PartitionWriter, "_append_again", reverse)


def appends_again_what_was_written(patch: pytest.MonkeyPatch) -> None:
    """Records in the closed ledger are appended again."""
    patch.setattr(Unconfirmed, "keep", lambda self, last_entry_id: None)


def takes_unknown_for_failure(patch: pytest.MonkeyPatch) -> None:
    """The own ledger is deleted, although a head may name it."""
    patch.setattr(HeadKeeper, "may_name", lambda self, ledger_id: False)


def takes_unknown_for_success(patch: pytest.MonkeyPatch) -> None:
    """A write that was not answered is not looked for."""
    write = HeadKeeper._write

    async def believe(self: Any, head: LogHead, sealed: Any) -> Versioned[LogHead] | None:
        patience, self._patience_seconds = self._patience_seconds, -1.0
        try:
            return await write(self, head, sealed)
        except MetadataUnavailableError:
            return Versioned(head, self._found.version)
        finally:
            self._patience_seconds = patience

    patch.setattr(HeadKeeper, "_write", believe)


def forgets_producers_at_a_takeover(patch: pytest.MonkeyPatch) -> None:
    """The next owner knows no sequence numbers."""

    async def nothing(*_: object) -> ProducerWindows:
        return ProducerWindows()

    patch.setattr(_Takeover, "_windows", nothing)


def answers_duplicates_too_early(patch: pytest.MonkeyPatch) -> None:
    """The answer is the place at which the first one will be if it is written."""
    runs_of = idempotence.IdempotentAppends._runs_of

    async def at_once(self: Any, producer: Any, known: Any, _: object) -> list[PositionRun]:
        return await runs_of(self, producer, known, {})

    patch.setattr(idempotence.IdempotentAppends, "_runs_of", at_once)


def reads_on_from_an_open_ledger(patch: pytest.MonkeyPatch) -> None:
    """The last entry that is confirmed now is taken for the ledger's end."""

    def note(self: Any, handle: Any) -> bool:
        self._ranges.note_end(handle.ledger_id, handle.last_entry_id)
        return True

    patch.setattr(reader.LogReader, "_note_end", note)


def commits_without_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """A consumer that lost its cursor moves it."""

    async def commit(self: Any, offset: int) -> None:
        await self._record.change(lambda found: replace(found, offset=offset))

    patch.setattr(HeldCursor, "commit", commit)


def lets_cursors_go_back(patch: pytest.MonkeyPatch) -> None:
    """A lower offset is committed as well."""

    async def commit(self: Any, offset: int) -> None:
        value: LogCursor = replace(self._found.value, offset=offset)
        await self._adopt(self._record.propose(value, self._found.version))

    patch.setattr(HeldCursor, "commit", commit)


def ignores_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    """An older batch is published again."""
    look = publisher.LogPublisher._look

    async def see_no_batch(self: Any, application_id: str, wanted: Any) -> Any:
        found = await look(self, application_id, wanted)
        return replace(found, last=Versioned(-1, found.last.version))

    patch.setattr(publisher.LogPublisher, "_look", see_no_batch)


def truncates_past_cursors(patch: pytest.MonkeyPatch) -> None:
    """Retention looks at size and time only."""

    def without_cursors(policy: Any, now_ms: int, cursors: Any) -> RetentionLimits | None:
        return limits_of(policy, now_ms, [])

    patch.setattr(truncation, "limits_of", without_cursors)


def counts_empty_ledgers(patch: pytest.MonkeyPatch) -> None:
    """An empty ledger takes an offset."""
    switch = _PartitionWriter._switch

    def count(self: Any, base_offset: int) -> None:
        switch(self, base_offset + (1 if base_offset == self._segment.base_offset else 0))

    patch.setattr(_PartitionWriter, "_switch", count)


def hook_after_recovery(client: LogClient, call: Callable[[], Awaitable[object]]) -> None:
    """Await `call` each time when the client has recovered a ledger."""
    recover = client.ledgers.recover

    async def recover_and_call(*arguments: Any, **options: Any) -> Any:
        found = await recover(*arguments, **options)
        await call()
        return found

    client.ledgers.recover = recover_and_call  # type: ignore[method-assign]
