"""L8: every published batch is there exactly once and whole; what was not published is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import BatchPublished, RecordedLogs
from tests.log_history.log_view import LogFindings, PartitionView


@dataclass(slots=True)
class _Attempt:
    """One batch with its contents; it may be published by several calls."""

    values: tuple[tuple[str, tuple[str, ...]], ...]
    calls: list[BatchPublished] = field(default_factory=list)

    @property
    def must_be_there(self) -> bool:
        return any(one.is_ok and one.was_new for one in self.calls)

    @property
    def may_be_there(self) -> bool:
        return self.must_be_there or any(one.outcome is EventOutcome.INFO for one in self.calls)

    def present(self, views: Mapping[str, PartitionView]) -> bool:
        """Whether some of it was seen."""
        return any(
            value in views[partition].places
            for partition, values in self.values
            for value in values
        )


def check_publications(
    history: RecordedLogs, views: Iterable[PartitionView], findings: LogFindings
) -> None:
    """L8, for each transactional log."""
    logs: defaultdict[str, dict[str, PartitionView]] = defaultdict(dict)
    for view in views:
        if view.final.is_transactional:
            logs[view.name.rpartition("#")[0]][view.name] = view
    for log, partitions in logs.items():
        calls = [
            one
            for one in history.events
            if isinstance(one, BatchPublished) and one.partition == log
        ]
        _Log(log, partitions, calls).check(findings)


class _Log:
    def __init__(
        self, name: str, views: Mapping[str, PartitionView], calls: list[BatchPublished]
    ) -> None:
        self.name = name
        self.views = views
        self.batches: defaultdict[tuple[str, int], list[_Attempt]] = defaultdict(list)
        for call in sorted(calls, key=lambda one: one.called):
            attempts = self.batches[call.application, call.batch]
            same = next((one for one in attempts if one.values == call.values), None)
            if same is None:
                same = _Attempt(call.values)
                attempts.append(same)
            same.calls.append(call)

    def check(self, findings: LogFindings) -> None:
        self._check_visible(findings)
        there: defaultdict[str, dict[int, _Attempt]] = defaultdict(dict)
        for (application, batch), attempts in self.batches.items():
            found = [one for one in attempts if one.present(self.views)]
            if len(found) > 1:
                findings.add("L8", self.name, f"batch {batch} of {application} is there twice")
            for one in found:
                there[application][batch] = one
                self._check_whole(f"batch {batch} of {application}", one, findings)
            for one in attempts:
                if one.must_be_there and one not in found and any(v for _, v in one.values):
                    self._check_lost(f"batch {batch} of {application}", one, findings)
        self._check_order(there, findings)
        self._check_dropped(findings)

    def _check_visible(self, findings: LogFindings) -> None:
        """What readers see belongs to a batch that was published, or may have been."""
        allowed = {
            value
            for attempts in self.batches.values()
            for one in attempts
            if one.may_be_there
            for _, values in one.values
            for value in values
        }
        for view in self.views.values():
            for offset, value in view.known.items():
                if value not in allowed:
                    findings.add("L8", view.name, f"{value} at {offset} was not published")

    def _check_whole(self, what: str, attempt: _Attempt, findings: LogFindings) -> None:
        """In each partition, all of it stands together in its order; truncation may cut it."""
        for partition, values in attempt.values:
            view = self.views[partition]
            places = view.places
            found = [
                (index, places[value]) for index, value in enumerate(values) if value in places
            ]
            if not found:
                self._check_lost(what, _Attempt(((partition, values),)), findings)
                continue
            index, offset = found[0]
            first = offset - index
            for number, value in enumerate(values):
                at = places.get(value)
                if at is None and first + number < view.final.start_offset:
                    continue
                if at != first + number:
                    message = f"{what}: {value} is at {at}, and belongs to {first + number}"
                    findings.add("L8", partition, message)

    def _check_lost(self, what: str, attempt: _Attempt, findings: LogFindings) -> None:
        """Nothing of it was seen: a truncation may have removed it before anybody read it."""
        for partition, values in attempt.values:
            if values and not self.views[partition].final.start_offset:
                findings.add("L8", partition, f"{what} was published, and is not there")

    def _check_order(self, there: Mapping[str, dict[int, _Attempt]], findings: LogFindings) -> None:
        """Batches of one application stand in the order of their numbers."""
        for application, batches in there.items():
            lasts: dict[str, int] = {}
            for batch in sorted(batches):
                for partition, values in batches[batch].values:
                    places = self.views[partition].places
                    offsets = [places[value] for value in values if value in places]
                    if not offsets:
                        continue
                    if min(offsets) <= lasts.get(partition, -1):
                        message = f"batch {batch} of {application} stands before an earlier one"
                        findings.add("L8", partition, message)
                    lasts[partition] = max(offsets)

    def _check_dropped(self, findings: LogFindings) -> None:
        """A batch is dropped only if it, or a later one, may have been published before."""
        for (application, batch), attempts in self.batches.items():
            for call in (call for one in attempts for call in one.calls):
                if not call.is_ok or call.was_new:
                    continue
                if not any(
                    other_batch >= batch and self._began_before(other, call)
                    for (other_application, other_batch), others in self.batches.items()
                    if other_application == application
                    for other in others
                ):
                    message = f"batch {batch} of {application} was dropped for no reason"
                    findings.add("L8", self.name, message)

    @staticmethod
    def _began_before(attempt: _Attempt, call: BatchPublished) -> bool:
        return any(
            one is not call
            and one.called < call.returned
            and (one.outcome is EventOutcome.INFO or (one.is_ok and one.was_new))
            for one in attempt.calls
        )
