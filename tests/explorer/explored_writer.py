"""The writer of the explorer: it carries out what the machine asks for, on its streams."""

from __future__ import annotations

from bookie.errors import LedgerFencedError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.exchange import (
    CancelTimer,
    ChooseNewcomers,
    MetadataRead,
    ReadMetadata,
    StartTimer,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerState
from bookie.ledger.quorum import slots_of
from bookie.ledger.write import writer_events
from tests.explorer.explored_base import WRITER, Surroundings
from tests.explorer.explored_machines import (
    PAYLOAD_BYTES,
    Body,
    copy_of_writer,
)
from tests.explorer.explored_world import (
    Answer,
    Request,
    Stream,
    Write,
    add,
    check_durable,
    write_lac,
)
from tests.property.ledger.protocol_world import require

LIMITED_SECONDS = 2.0
"""What a bookie says when a rate is used up. Nothing here depends on it."""


class WriterSide(Surroundings):
    """Streams to bookies, and what the writer does."""

    def _do_append(self) -> None:
        self._step_writer(writer_events.Append(1, PAYLOAD_BYTES))

    def _do_close(self) -> None:
        self.budget["close"] -= 1
        self._step_writer(writer_events.Close())

    def _do_serve(self, number: int) -> None:
        stream = (self.streams + self.left)[number]
        request, *others = stream.requests
        bookie = self.bookies[stream.bookie]
        if request.body:
            bodies = (request.body,)
            bookie, status = add(
                bookie, bodies, stream.incarnation, self.acknowledged, recovery=False
            )
        else:
            bookie, status = write_lac(bookie, request.lac, self.acknowledged)
        if status is Status.FENCED:
            self.notes.append("add refused after a fence")
        if status is Status.WRONG_INCARNATION:
            self.notes.append("add refused by another incarnation")
        self.bookies[stream.bookie] = bookie
        answers = (*stream.answers, Answer(request.number, request.epoch, int(status)))
        self._set_stream(number, stream._replace(requests=tuple(others), answers=answers))

    def _do_limit(self, number: int) -> None:
        self.budget["limit"] -= 1
        stream = (self.streams + self.left)[number]
        request, *others = stream.requests
        refusal = Answer(request.number, request.epoch, int(Status.TOO_MANY_REQUESTS))
        answers = (*stream.answers, refusal)
        self._set_stream(number, stream._replace(requests=tuple(others), answers=answers))

    def _do_copy(self, number: int) -> None:
        self.budget["copy"] -= 1
        stream = (self.streams + self.left)[number]
        first = stream._replace(requests=stream.requests[:1])
        self.zombies += self._zombies_in(first)
        self._do_serve(number)

    def _do_hear(self, number: int) -> None:
        stream = (self.streams + self.left)[number]
        answer, *others = stream.answers
        self._set_stream(number, stream._replace(answers=tuple(others)))
        status, writer = Status(answer.status), self.writer
        seconds = LIMITED_SECONDS if status is Status.TOO_MANY_REQUESTS else 0.0
        if answer.epoch != writer.epochs[stream.slot]:
            self.notes.append(f"{status.name} of a former bookie")
        if answer.number < 0:
            event = writer_events.LacAnswered(stream.slot, answer.epoch, status, "", seconds)
            self._step_writer(event)
        else:
            self._step_writer(
                writer_events.AddAnswered(
                    answer.number, stream.slot, answer.epoch, status, "", seconds
                )
            )
        if stream.slot in self.writer.delivery.pacing.slots:
            self.notes.append("paced")
        elif stream.slot in writer.delivery.pacing.slots:
            self.notes.append("no longer paced")

    def _do_break(self, slot: int) -> None:
        self.budget["break"] -= 1
        self._break(slot)

    def _break(self, slot: int) -> None:
        stream = self.streams[slot]
        self.zombies += self._zombies_in(stream)
        self.streams[slot] = stream._replace(is_open=False, requests=(), answers=())
        self._step_writer(writer_events.SlotDisconnected(slot, stream.epoch))

    def _do_connect(self, slot: int) -> None:
        stream = self.streams[slot]
        if stream.incarnation == self.bookies[stream.bookie].incarnation:
            self.streams[slot] = stream._replace(is_open=True)
            self._step_writer(writer_events.SlotConnected(slot, stream.epoch))
            return
        self.notes.append("writer told of a loss")
        self.streams[slot] = stream._replace(is_lost=True)
        self.told |= {stream.bookie}
        self._step_writer(writer_events.SlotLost(slot, stream.epoch))

    def _set_stream(self, number: int, stream: Stream) -> None:
        if number < len(self.streams):
            self.streams[number] = stream
        elif stream.requests or stream.answers:
            self.left[number - len(self.streams)] = stream
        else:
            del self.left[number - len(self.streams)]

    def _step_writer(self, event: writer_events.WriterEvent) -> None:
        change = self.writer.ownership.change
        self.writer = writer = copy_of_writer(self.writer)
        self.writer_keys = {}
        effects = writer.step(event)
        if change is not None and writer.ownership.change is None:
            if writer.error is not None:
                self.notes.append("change by the writer found the ledger taken")
            elif isinstance(event, MetadataRead):
                done = writer.metadata.last_fragment == change.proposal.last_fragment
                self.notes.append(
                    "lost compare-and-set found done" if done else "change found overtaken"
                )
        for effect in effects:
            self._carry_out(effect, is_changing=change is not None)

    def _carry_out(  # noqa: PLR0912  (a table)
        self, effect: writer_events.WriterEffect, *, is_changing: bool
    ) -> None:
        match effect:
            case writer_events.SendBatch(number, first, _, lac, _, slots):
                self.kept = (*self.kept, (first, lac))
                for slot in slots_of(slots):
                    self._send(slot, number, self.kept[number])
            case writer_events.Resend(number, slot):
                self._send(slot, number, self.kept[number])
            case writer_events.SendLac(lac, slots):
                for slot in slots_of(slots):
                    self._send(slot, -1, None, lac)
            case writer_events.Confirmed(number):
                self._on_confirmed(number, is_changing=is_changing)
            case writer_events.Failed(error):
                taken = self.store.metadata.state is not LedgerState.OPEN
                require(
                    not isinstance(error, LedgerFencedError) or taken,
                    "a writer gave up as fenced, and nobody had taken the ledger",
                )
                self.notes.append(f"writer ended: {type(error).__name__}")
            case writer_events.WriterClosed(metadata):
                require(self._is_stored(metadata), "C7: the writer's close is stored")
                require(metadata.last_entry_id == self.acknowledged, "C7: closed at the LAC")
                self.notes.append("closed by the writer")
            case writer_events.ReplaceBookies(bookies):
                for slot, name in bookies.items():
                    self._replace(slot, name)
            case ChooseNewcomers():
                self.choices[WRITER] = effect
            case StartTimer(timer):
                if timer[0] != "allow":
                    self.timers |= {(WRITER, timer)}
            case CancelTimer(timer):
                self.timers -= {(WRITER, timer)}
            case ReadMetadata():
                self._operate(WRITER, None)
            case WriteMetadata(metadata, version):
                self._operate(WRITER, Write(WRITER, metadata, version))
            case writer_events.CloseFailed():
                self.notes.append("close by the writer failed")
            case _:
                pass

    def _send(self, slot: int, number: int, body: Body | None, lac: int = NO_ENTRY) -> None:
        stream = self.streams[slot]
        require(stream.is_open, "nothing is sent on a broken stream")
        request = Request(number, self.writer.epochs[slot], body, lac)
        self.streams[slot] = stream._replace(requests=(*stream.requests, request))

    def _replace(self, slot: int, name: str) -> None:
        former = self.streams[slot]
        if former.bookie == name:
            self.notes.append("its own successor")
        if former.requests or former.answers:
            self.left = sorted([*self.left, former])
        epoch = self.writer.epochs[slot]
        incarnation = self.bookies[name].incarnation
        self.streams[slot] = Stream(slot, name, incarnation, epoch, is_open=False)

    def _on_confirmed(self, number: int, *, is_changing: bool) -> None:
        entry_id = self.kept[number][0]
        require(entry_id == self.acknowledged + 1, "T1: batches are acknowledged in order")
        if is_changing and self.writer.ownership.change is not None:
            self.notes.append("acknowledged during a change")
        self.acknowledged = entry_id
        check_durable(entry_id, self.quorum, self.bookies, [self.store.metadata], self.told)
