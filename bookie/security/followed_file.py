"""Loads files of ``[security]`` again whenever they change."""

from __future__ import annotations

import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from bookie.env import Clock, SystemClock
from bookie.errors import ConfigurationError
from bookie.telemetry import event_log

LOOK_SECONDS = 1.0
"""The shortest time between two checks of the files. A check costs one call of stat per file."""

_T = TypeVar("_T")
Stamp: TypeAlias = tuple[tuple[int, ...], ...]
"""For each file: device, inode, size, time of the last change of content, and of the inode."""

_log = event_log(__name__)


class Followed(ABC, Generic[_T]):
    """Follows the changes of files. A subclass first loads the files, and sets `_stamp`.

    While changed files cannot be used, the content of the last usable files stays.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()
        self._looked_at = self._clock.monotonic()
        self._stamp: Stamp = ()
        self._refused: Stamp = ()
        self._said = ""

    def refresh(self) -> bool:
        """Load changed files, but look at most once a second; True if new content is used.

        If the content cannot be used, the error is logged once, and the files are loaded again when
        a file changes. If a file cannot be read, each check tries again, because the cause may be
        its directory, whose repair does not change the file. Any thread may call this method.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        try:
            stamp = self._read_stamp()
            if stamp in (self._stamp, self._refused):
                return False
            try:
                loaded = self._reload()
            except ConfigurationError as error:
                # Files with unusable content are loaded again only after a change.
                if isinstance(error.__cause__, ssl.SSLError | ValueError):
                    self._refused = stamp
                raise
            if self._read_stamp() != stamp:
                return False  # a file changed while the files were loaded
        except ConfigurationError as error:
            if str(error) != self._said:
                self._said = str(error)
                self._tell(self._said)
            return False
        self._said, self._refused, self._stamp = "", (), stamp
        self._take(loaded)
        self._tell("")
        return True

    def _read_stamp(self) -> Stamp:
        stamps = []
        for setting, path in self._paths():
            try:
                stat = os.stat(path)
            except OSError as error:
                raise unusable(setting, path, error) from error
            stamps.append(
                (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            )
        return tuple(stamps)

    @abstractmethod
    def _paths(self) -> list[tuple[str, str]]:
        """Return each file: the setting that names it, and its path."""

    @abstractmethod
    def _reload(self) -> _T: ...

    @abstractmethod
    def _take(self, loaded: _T) -> None: ...

    @abstractmethod
    def _tell(self, refusal: str) -> None:
        """Log why changed files are refused; if `refusal` is empty, log that they are used."""


def unusable(setting: str, path: str, error: OSError, fault: str = "") -> ConfigurationError:
    """Return the error for a file that cannot be used; `fault` replaces the system's reason."""
    return ConfigurationError(f"{setting} {path} cannot be used: {fault or reason_of(error)}")


def reason_of(error: OSError) -> str:
    """Return the reason of the system or of OpenSSL in lower case."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (error.strerror or str(error)).lower()


class FollowedFile(Followed[_T]):
    """Holds the parsed content of one file.

    Args:
        setting: the setting that names the file; error texts begin with it.
        path: the path of the file.
        bytes_max: the greatest allowed size of the file, in bytes.
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
        super().__init__(clock)
        self._setting = setting
        self._path = path
        self._bytes_max = bytes_max
        self._parse = parse
        self._stamp = self._read_stamp()
        self.value = self._reload()
        """The parsed content; each change replaces the object."""

    def _paths(self) -> list[tuple[str, str]]:
        return [(self._setting, self._path)]

    def _take(self, loaded: _T) -> None:
        self.value = loaded

    def _tell(self, refusal: str) -> None:
        if refusal:
            _log.warning("security_file_not_reloaded", reason=refusal)
        else:
            _log.info("security_file_reloaded", setting=self._setting, path=self._path)

    def _reload(self) -> _T:
        try:
            with open(self._path, "rb") as file:
                content = file.read(self._bytes_max + 1)
        except OSError as error:
            raise unusable(self._setting, self._path, error) from error
        try:
            if len(content) > self._bytes_max:
                raise ValueError(f"is longer than {self._bytes_max} bytes")
            return self._parse(content)
        except ValueError as error:
            raise ConfigurationError(f"{self._setting} {self._path} {error}") from error
