"""Reads one file of ``[security]`` again whenever the file changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from bookie.env import Clock, SystemClock
from bookie.errors import ConfigurationError
from bookie.telemetry import event_log

LOOK_SECONDS = 1.0
"""The shortest time between two checks of a file. A check costs one call of stat."""

_T = TypeVar("_T")
_Stamp = tuple[int, ...]
"""Device, inode, size, and the times of change of content and of owner."""

_log = event_log(__name__)


class FollowedFile(Generic[_T]):
    """Holds the parsed content of a file, and follows the changes of the file.

    While the changed file cannot be used, the content of its last usable version stays.

    Args:
        setting: the setting that names the file; error texts begin with it.
        path: the path of the file.
        bytes_max: the greatest allowed size of the file.
        parse: parses the content; raises ValueError whose text can follow the file's path.
        clock: measures the time between two checks of the file.

    Raises:
        ConfigurationError: the file cannot be read or used.
    """

    def __init__(
        self,
        setting: str,
        path: str,
        bytes_max: int,
        parse: Callable[[bytes], _T],
        clock: Clock | None = None,
    ) -> None:
        self._setting = setting
        self._path = path
        self._bytes_max = bytes_max
        self._parse = parse
        self._monotonic = (clock or SystemClock()).monotonic
        self._looked_at = self._monotonic()
        self._refused: _Stamp = ()
        self._said = ""
        self._stamp = self._read_stamp()
        self.value = self._load()
        """The parsed content; each change replaces the object."""

    def refresh(self) -> bool:
        """Load a changed file, checked at most once a second; return True if new content is used.

        If the file's content cannot be used, the error is logged once, and the file is read again
        when it changes. If the file cannot be read, each check tries again. Any thread may call
        this method.
        """
        now = self._monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        try:
            stamp = self._read_stamp()
            if stamp in (self._stamp, self._refused):
                return False
            try:
                value = self._load()
            except ConfigurationError as error:
                if isinstance(error.__cause__, ValueError):
                    self._refused = stamp
                raise
            if self._read_stamp() != stamp:
                return False  # the file changed meanwhile
        except ConfigurationError as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("security_file_not_reloaded", reason=self._said)
            return False
        self._said, self._refused = "", ()
        self._stamp, self.value = stamp, value
        _log.info("security_file_reloaded", setting=self._setting, path=self._path)
        return True

    def _read_stamp(self) -> _Stamp:
        try:
            stat = os.stat(self._path)
        except OSError as error:
            raise self._unusable(error) from error
        return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def _load(self) -> _T:
        try:
            with open(self._path, "rb") as file:
                content = file.read(self._bytes_max + 1)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            if len(content) > self._bytes_max:
                raise ValueError(f"is longer than {self._bytes_max} bytes")
            return self._parse(content)
        except ValueError as error:
            raise ConfigurationError(f"{self._setting} {self._path} {error}") from error

    def _unusable(self, error: OSError) -> ConfigurationError:
        reason = (error.strerror or str(error)).lower()
        return ConfigurationError(f"{self._setting} {self._path} cannot be used: {reason}")
