"""L7: commits of one cursor never go back except by a reset, and its epochs do not mix."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from tests.log_history.log_events import CursorCommitted, CursorReset, CursorSeen, CursorTaken
from tests.log_history.log_view import LogFindings, PartitionView


def check_cursors(view: PartitionView, findings: LogFindings) -> None:
    """L7, for each cursor of the partition."""
    cursors: defaultdict[str, _Cursor] = defaultdict(_Cursor)
    for event in view.events:
        match event:
            case CursorTaken():
                cursors[event.cursor].taken.append(event)
            case CursorCommitted():
                cursors[event.cursor].commits.append(event)
            case CursorReset():
                cursors[event.cursor].resets.append(event)
            case CursorSeen():
                cursors[event.cursor].seen.append(event)
            case _:
                pass
    for name, cursor in cursors.items():
        cursor.check(f"{view.name} {name}", findings)


class _Cursor:
    """What happened to one cursor."""

    def __init__(self) -> None:
        self.taken: list[CursorTaken] = []
        self.commits: list[CursorCommitted] = []
        self.resets: list[CursorReset] = []
        self.seen: list[CursorSeen] = []

    def check(self, where: str, findings: LogFindings) -> None:
        """All parts of the rule."""
        self._check_owners(where, findings)
        self._check_record(where, findings)
        self._check_progress(where, findings)

    def _was_reset(self, before: int, after: int) -> bool:
        """Whether a reset may have begun an epoch behind `before`, up to `after`."""
        return any(one.after_epoch < after and one.until_epoch > before for one in self.resets)

    def _check_owners(self, where: str, findings: LogFindings) -> None:
        """An epoch has one consumer, and only this one's commits succeed in it."""
        owners: dict[int, str] = {}
        for taken in self.taken:
            owner = owners.setdefault(taken.epoch, taken.handle)
            if owner != taken.handle:
                findings.add("L7", where, f"epoch {taken.epoch}: {owner} and {taken.handle}")
        for commit in self.commits:
            if commit.is_ok and owners.get(commit.epoch, commit.handle) != commit.handle:
                message = f"{commit.handle} committed in epoch {commit.epoch} of another consumer"
                findings.add("L7", where, message)

    def _check_record(self, where: str, findings: LogFindings) -> None:
        """By version, the record's epoch never falls, and its offset falls only by a reset."""
        for before, after in pairwise(sorted(self.seen, key=lambda one: one.version)):
            if after.epoch < before.epoch:
                findings.add("L7", where, f"epoch {after.epoch} behind {before.epoch}")
            elif after.offset < before.offset and not self._was_reset(before.epoch, after.epoch):
                message = f"from {before.offset} back to {after.offset} in epoch {after.epoch}"
                findings.add("L7", where, message)

    def _check_progress(self, where: str, findings: LogFindings) -> None:
        """What was committed in an epoch holds for all later ones, and for the record itself.

        A commit that is called after another one has taken the cursor never succeeds.
        """
        commits: dict[int, int] = {}
        for commit in self.commits:
            if commit.is_ok:
                commits[commit.epoch] = max(commits.get(commit.epoch, 0), commit.offset)
        begun = [(one.epoch, one.offset) for one in self.taken]
        begun += [(one.epoch, one.offset) for one in self.seen]
        for seen in self.seen:
            for commit in self.commits:
                is_before = commit.is_ok and commit.returned < seen.called
                if is_before and commit.epoch == seen.epoch and commit.offset > seen.offset:
                    message = f"{commit.offset} was committed, and the record says {seen.offset}"
                    findings.add("L7", where, message)
        for epoch, offset in begun:
            for before, committed in commits.items():
                is_behind = before < epoch and offset < committed
                if is_behind and not self._was_reset(before, epoch):
                    message = f"epoch {epoch} began at {offset}; epoch {before} had {committed}"
                    findings.add("L7", where, message)
        for commit in self.commits:
            if commit.is_ok and any(
                one.epoch > commit.epoch and one.returned < commit.called for one in self.taken
            ):
                findings.add("L7", where, f"epoch {commit.epoch} committed after a later one began")
