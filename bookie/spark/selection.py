"""The options that select logs, partitions of logs, or ledgers for a read.

====================== ========================== ==================================================
option                 Kafka's name               what it selects
====================== ========================== ==================================================
``log``, or ``path``                              one log
``logs``               ``subscribe``              logs, with commas between the names
``logPattern``         ``subscribePattern``       logs whose whole name matches, also future logs
``partitions``         ``assign``                 partitions as JSON: ``{"orders": [0, 2]}``
``ledgers``                                       ledgers by id: ``1,2,10-20``
====================== ========================== ==================================================

If a Kafka option is used, the column with the name of the log is called ``topic``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bookie.errors import BadRequestError, NoSuchLogError
from bookie.ids import MAX_ID
from bookie.spark.options import SparkOptions
from bookie.spark.stream_offsets import plain_name

if TYPE_CHECKING:
    from bookie.sync import SyncBookKeeper, SyncLogSurvey

LOG_OPTIONS = ("log", "logs", "subscribe", "logPattern", "subscribePattern", "partitions", "assign")
CALLS_AT_A_TIME = 16
"""The number of logs or ledgers that a planner reads concurrently."""

KAFKAS = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class LogSelection:
    """A selection of logs, by names or by a pattern."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] | None = None
    """The partitions to read, by log; None for all partitions of all logs."""
    is_kafkas: bool = False
    """True if a Kafka option selected the logs."""

    def has(self, log: str) -> bool:
        """True if the selection includes this name, even if no log has the name."""
        if self.pattern:
            return re.fullmatch(self.pattern, log) is not None
        return log in self.names


@dataclass(frozen=True, slots=True)
class LedgerSelection:
    """A selection of ledgers: ranges of ids, with both ends included."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, ledger_id: int) -> bool:
        return any(first <= ledger_id <= last for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class Surveys:
    """The state of the selected logs at one moment."""

    by_log: Mapping[str, SyncLogSurvey]
    selection: LogSelection
    missing: Mapping[str, NoSuchLogError] = field(default_factory=dict)
    """The error of each missing log, by name. With a pattern, a missing log was just deleted."""
    _bounds: dict[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def bounds(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Return each partition's earliest offset and end, by log and partition.

        The first call asks the bookies; later calls return the same result.

        Raises:
            BadRequestError: a named partition does not exist.
            BookieError: an error of `SyncLogSurvey.bounds`.
        """
        self.check_partitions()
        if self.by_log and not self._bounds:
            with ThreadPoolExecutor(CALLS_AT_A_TIME) as threads:
                found = threads.map(lambda one: one.bounds(), self.by_log.values())
                self._bounds.update(zip(self.by_log, found, strict=True))
        return {
            (log, number): bounds[number]
            for log, bounds in self._bounds.items()
            for number in self.partitions(log)
        }

    def log_ids(self) -> dict[str, str]:
        """Return the ids of the logs by name; a later log of the same name has another id."""
        return {log: one.definition.log_id for log, one in self.by_log.items()}

    def require_named(self) -> None:
        """Raise an error if the options name a log or a partition that does not exist.

        Raises:
            NoSuchLogError: a log does not exist.
            BadRequestError: a partition does not exist.
        """
        for name in self.selection.names:
            if name in self.missing:
                raise self.missing[name]
        self.check_partitions()

    def check_partitions(self) -> None:
        """Raise an error if the options name a partition that its log does not have.

        Raises:
            BadRequestError: a named partition does not exist.
        """
        for name, numbers in (self.selection.partitions or {}).items():
            if name not in self.by_log:
                continue
            count = self.by_log[name].definition.partitions
            for number in numbers:
                if number >= count:
                    raise BadRequestError(f"the log {name} has {count} partitions, and no {number}")

    def partitions(self, log: str) -> Sequence[int]:
        """Return the numbers of the selected partitions of a log."""
        if self.selection.partitions is not None:
            return self.selection.partitions[log]
        return range(self.by_log[log].definition.partitions)


def take_selection(options: SparkOptions) -> LogSelection | LedgerSelection:
    """Parse the options that select logs or ledgers.

    Raises:
        BadRequestError: no option selects logs or ledgers, or two options do, or one is invalid.
    """
    given = options.take_one((*LOG_OPTIONS, "path", "ledgers"))
    log = options.take("log", "path")
    if options.take("paths") is not None:
        raise BadRequestError("a path names one log; give several names by the option logs")
    names = options.take_names("logs", "subscribe")
    pattern = options.take("logPattern", "subscribePattern")
    partitions = options.take("partitions", "assign")
    ledgers = options.take("ledgers")
    is_kafkas = given in KAFKAS
    if log is not None:
        return LogSelection((plain_name(log.strip()),))
    if names is not None:
        return LogSelection(tuple(dict.fromkeys(map(plain_name, names))), is_kafkas=is_kafkas)
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadRequestError(f"the option {given} is no regular expression: {error}") from None
        return LogSelection(pattern=pattern, is_kafkas=is_kafkas)
    if partitions is not None:
        chosen = _parse_partitions(str(given), partitions)
        return LogSelection(tuple(chosen), partitions=chosen, is_kafkas=is_kafkas)
    if ledgers is not None:
        return LedgerSelection(parse_ledgers(ledgers))
    raise BadRequestError(
        "say what to read by one of the options log, logs, logPattern, partitions, ledgers or table"
    )


def survey(client: SyncBookKeeper, selection: LogSelection, password: bytes) -> Surveys:
    """Read the state of the selected logs; the result also contains the names of missing logs.

    `Surveys.require_named` raises an error about missing logs that the options name.
    """
    names = selection.names
    if selection.pattern:
        names = tuple(filter(selection.has, client.list_logs()))

    def look(name: str) -> SyncLogSurvey | NoSuchLogError:
        try:
            return client.survey_log(name, password=password)
        except NoSuchLogError as error:
            return error

    found: dict[str, SyncLogSurvey] = {}
    missing: dict[str, NoSuchLogError] = {}
    with ThreadPoolExecutor(CALLS_AT_A_TIME) as threads:
        for name, one in zip(names, threads.map(look, names), strict=True):
            if isinstance(one, NoSuchLogError):
                missing[name] = one
            else:
                found[name] = one
    return Surveys(found, selection, missing)


def parse_ledgers(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ids and ranges of ids, such as ``1,2,10-20``; return the ranges in ascending order.

    Raises:
        BadRequestError: the text is no list of ids and ranges.
    """
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,19})\s*(?:-\s*(\d{1,19})\s*)?", part, re.ASCII)
        if match is None:
            raise BadRequestError(f"the option ledgers is a list such as 1,2,10-20, not {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= MAX_ID:
            raise BadRequestError(f"{part.strip()} is no range of ledger ids")
        ranges.append((first, last))
    return tuple(sorted(ranges))


def _parse_partitions(option: str, text: str) -> dict[str, tuple[int, ...]]:
    wrong = BadRequestError(f'the option {option} is JSON such as {{"orders": [0, 2]}}')
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(given, dict) or not given:
        raise wrong
    found: dict[str, tuple[int, ...]] = {}
    for log, numbers in sorted(given.items()):
        if not isinstance(numbers, list) or not numbers:
            raise wrong
        if not all(type(one) is int and one >= 0 for one in numbers):
            raise wrong
        name = plain_name(log)  # `orders` and `default/orders` are one log
        found[name] = tuple(sorted({*numbers, *found.get(name, ())}))
    return found
