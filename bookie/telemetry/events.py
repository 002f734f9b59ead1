"""Structured log lines about state changes; each line has a constant name and fields.

Library code writes events through `event_log`, which uses the standard library's `logging`. So a
program that embeds bookie gets ordinary log records, and keeps its own configuration of logging.
Only the daemon and the command line call `configure_logging`. After that call, all log records of
the process, also log records of other libraries, are written as JSON or for a console.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TextIO

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "console"]
FieldValue = str | int | float | bool | None | Sequence[str]
"""The types of a log line's field values; values are rendered only when the line is written."""


@dataclass(frozen=True, slots=True)
class Event:
    """The message of a log record: a constant name and its fields.

    An event has a readable text, so an event works with any configuration of `logging`.
    """

    name: str
    fields: Mapping[str, FieldValue] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{key}={value!r}" for key, value in self.fields.items())))


class EventLog:
    """Writes events to a logger of the module `logging`.

    ::

        log = event_log(__name__)
        log.info("checkpoint_committed", mark_file=7, seconds=0.031)
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def info(self, name: str, /, **fields: FieldValue) -> None:
        """Write an event about an expected change of state."""
        self._write(logging.INFO, name, fields, None)

    def warning(self, name: str, /, **fields: FieldValue) -> None:
        """Write an event that an operator should examine, although the bookie continues."""
        self._write(logging.WARNING, name, fields, None)

    def error(self, name: str, /, error: BaseException | None = None, **fields: FieldValue) -> None:
        """Write an event about the failure of a request or bookie, with `error`'s traceback."""
        self._write(logging.ERROR, name, fields, error)

    def _write(
        self, level: int, name: str, fields: Mapping[str, FieldValue], error: BaseException | None
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, Event(name, fields), exc_info=error, stacklevel=3)


def event_log(name: str, /) -> EventLog:
    """Return the log of the module `name` (its `__name__`)."""
    return EventLog(logging.getLogger(name))


def configure_logging(
    level: LogLevel, style: LogFormat, *, stream: TextIO | None = None, **bound: FieldValue
) -> None:
    """Write every log record of the process to `stream`, one line each.

    Only the daemon and the command line may call this function, because it replaces the handlers of
    the root logger. The function also turns Python's warnings into log records.

    Args:
        level: The least severe level to write.
        style: `json` for machines (keys `timestamp`, `level`, `logger`, `event`, then fields);
            `console` for people.
        stream: The file for the lines; None means standard error.
        bound: Fields to add to every line, such as the bookie's id.
    """
    target = stream or sys.stderr
    handler = _LineHandler(target)
    handler.setFormatter(_EventFormatter(style, colors=target.isatty(), bound=bound))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)


def writes_json() -> bool:
    """True if `configure_logging` chose JSON for this process."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    return any(isinstance(each, _EventFormatter) and each.style == "json" for each in formatters)


def log_uncaught() -> None:
    """Log, and do not print, all later uncaught exceptions, also in threads and destructors.

    Only the daemon calls this function, after `configure_logging`. Event loops already report
    uncaught exceptions to `logging`.
    """
    log = event_log(__name__)

    def uncaught(_type: object, error: BaseException, _traceback: object) -> None:
        log.error("uncaught_exception", error=error)

    def in_thread(failure: threading.ExceptHookArgs) -> None:
        name = failure.thread.name if failure.thread is not None else ""
        log.error("uncaught_exception", error=failure.exc_value, thread=name)

    def unraisable(failure: sys.UnraisableHookArgs) -> None:
        what = f"{failure.err_msg or 'exception ignored in'}: {failure.object!r}"
        log.error("unraisable_exception", error=failure.exc_value, what=what)

    sys.excepthook = uncaught
    threading.excepthook = in_thread
    sys.unraisablehook = unraisable


def set_log_level(level: LogLevel) -> None:
    """Change the least severe level that is written, after a call of `configure_logging`."""
    logging.getLogger().setLevel(level.upper())


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes log lines; for a record that cannot be formatted, writes a line with the reason."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (the library's name)
        """Write a line that names the record's logger and the error; ignore further errors."""
        lost = logging.makeLogRecord({"name": record.name, "levelname": "ERROR"})
        lost.msg = Event("log_line_lost", {"reason": repr(sys.exc_info()[1])})
        try:
            self.stream.write(self.format(lost) + self.terminator)
            self.flush()
        except Exception:  # noqa: BLE001, S110  (the stream is broken, and there is no other stream)
            pass


class _EventFormatter(logging.Formatter):
    """Formats log records, whose message is an `Event`, or a text of another library."""

    def __init__(self, style: LogFormat, *, colors: bool, bound: Mapping[str, FieldValue]) -> None:
        super().__init__()
        self.style = style
        self._bound = bound
        self._render: Callable[[dict[str, Any]], str]
        self._render = _render_json if style == "json" else partial(_render_console, colors=colors)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line; for a console, lines of a traceback may follow."""
        line: dict[str, Any] = {
            "timestamp": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, Event):
            line |= {"event": record.msg.name, **self._bound, **record.msg.fields}
        else:
            line |= {"event": record.getMessage(), **self._bound}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return self._render(line)


def _render_json(line: dict[str, Any]) -> str:
    return json.dumps(line, default=str)


_COLORS = {"debug": "32", "info": "32", "warning": "33"}
_RED = "31"


def _render_console(line: dict[str, Any], *, colors: bool) -> str:
    """Return one line: time, level, event, logger and fields; lines of a traceback may follow."""
    fields = dict(line)
    when, level, logger, event = (fields.pop(x) for x in ("timestamp", "level", "logger", "event"))
    severity, event = f"{level:<8}", f"{event:<30}"
    if colors:
        severity = f"\x1b[{_COLORS.get(level, _RED)}m{severity}\x1b[0m"
        event = f"\x1b[1m{event}\x1b[0m"
    below = fields.pop("exception", None)
    said = " ".join(f"{key}={_plain(value)}" for key, value in fields.items())
    text = f"{when} [{severity}] {event} [{logger}] {said}".rstrip()
    return text if below is None else f"{text}\n{below}"


def _plain(value: object) -> str:
    """Return a value as text, with quotes if the text is empty or has spaces."""
    text = str(value)
    return repr(text) if not text or any(letter.isspace() for letter in text) else text


def _timestamp(record: logging.LogRecord) -> str:
    """Return the record's time in UTC with microseconds, as in RFC 3339."""
    moment = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
