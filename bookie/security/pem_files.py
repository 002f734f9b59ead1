"""The files of ``[security]``, loaded again when they change."""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from bookie.config import SecuritySettings
from bookie.env import Clock, SystemClock
from bookie.errors import CannotStartError, ConfigurationError
from bookie.security.contexts import client_context, server_context
from bookie.security.usable import certificate_fault, key_fault, require_usable
from bookie.telemetry import event_log

LOOK_SECONDS = 1.0
"""The shortest time between two looks at the files. A look costs three calls of stat."""

_Stamp: TypeAlias = tuple[tuple[int, ...], ...]
"""Device, inode, size, and the times of change of content and of owner, of each file."""

_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")

_PAUSE_SECONDS = 0.05
"""The time between two attempts to load files that are being renewed."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class Pems:
    """The content of the files at one moment; certificate and key belong together."""

    ca: bytes
    certificate: bytes = b""
    """Empty if the process has no certificate of its own."""
    key: bytes = field(default=b"", repr=False)


_Loaded: TypeAlias = tuple[Pems, ssl.SSLContext, Mapping[str, str]]


class PemFiles:
    """The CA, and perhaps a certificate and its key, as they are now.

    Files that change are taken only if they can be used. Until then the former content stays: a
    program that renews a certificate writes two files, one after the other.

    Args:
        settings: names the files; `ca_file` is set.
        clock: for the time between two looks.
        check: what else content must pass, before it is taken; it raises ValueError.
        patience_seconds: how long files may be wrong at first, if they have just changed or do not
            fit together: a program may be renewing them. The calling thread waits.
        judge: says why peers would refuse the certificate, as `faults_of` does. Changed files are
            taken only if they have no faults that the former ones have not.

    Raises:
        ConfigurationError: a file cannot be read, or the files do not fit together.
        CannotStartError: they do not fit together, although there was patience: a renewal may mend
            them at any time.
    """

    def __init__(
        self,
        settings: SecuritySettings,
        clock: Clock | None = None,
        check: Callable[[Pems], object] | None = None,
        judge: Callable[[SecuritySettings], Mapping[str, str]] | None = None,
        patience_seconds: float = 0.0,
    ) -> None:
        self._settings = settings
        self._check = check
        self._judge = judge or _no_faults
        self._clock = clock or SystemClock()
        self._looked_at = self._clock.monotonic()
        self._refused: _Stamp = ()
        self._said = ""
        self._stamp, loaded = self._load_first(patience_seconds)
        self.pems, self.context, self.faults = loaded
        """The content, the SSL context of HTTP, a server's if there is a certificate, and why peers
        would refuse the certificate: kind → sentence."""

    def client_context(self) -> ssl.SSLContext:
        """Return an SSL context for requests to the HTTP servers of bookies."""
        return client_context(self._settings)

    @property
    def settings(self) -> SecuritySettings:
        """The settings that name the files."""
        return self._settings

    def refresh(self) -> bool:
        """Take changed files, at most one look a second; return True if something was taken.

        Files that cannot be used are logged once, and tried again as soon as they change. Files
        that cannot be read are tried at each look: a repaired directory changes no file in it. So
        are files that peers would refuse, because a certificate may become valid.
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
                pems, context, faults = self._load()
                self._require_no_new(faults)
            except ConfigurationError as error:
                if _is_about_content(error):
                    self._refused = stamp
                raise
            if self._read_stamp() != stamp:
                return False  # a file changed meanwhile
        except ConfigurationError as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("certificate_not_reloaded", reason=self._said)
            return False
        self._said = ""
        self._stamp, self.pems, self.context, self.faults = stamp, pems, context, faults
        _log.info("certificate_reloaded", certificate=self._settings.certificate_file)
        return True

    def _load_first(self, patience_seconds: float) -> tuple[_Stamp, _Loaded]:
        ends_at = self._clock.monotonic() + patience_seconds
        while True:
            try:
                stamp = self._read_stamp()
                loaded = self._load()
                if self._read_stamp() == stamp:
                    return stamp, loaded
                refusal = ConfigurationError("the files of [security] keep changing")
                if self._clock.monotonic() < ends_at + LOOK_SECONDS:
                    continue
            except ConfigurationError as error:
                if not (_is_mismatch(error) or self._changed_within(patience_seconds)):
                    raise
                refusal = error
            if self._clock.monotonic() >= ends_at:
                if patience_seconds and _is_mismatch(refusal):
                    raise CannotStartError(str(refusal)) from refusal
                raise refusal
            threading.Event().wait(_PAUSE_SECONDS)

    def _changed_within(self, seconds: float) -> bool:
        """True if a file that exists was changed so shortly ago."""
        since = self._clock.now_ms() / 1000 - seconds
        for _, path in self._paths():
            with contextlib.suppress(OSError):
                if os.stat(path).st_ctime >= since:
                    return True
        return False

    def _require_no_new(self, faults: Mapping[str, str]) -> None:
        for kind, sentence in faults.items():
            if kind not in self.faults:
                raise ConfigurationError(
                    f"peers would refuse security.certificate_file "
                    f"{self._settings.certificate_file}: {sentence}"
                )

    def _paths(self) -> list[tuple[str, str]]:
        named = ("ca_file", "certificate_file", "key_file")
        return [(name, path) for name in named if (path := getattr(self._settings, name))]

    def _read_stamp(self) -> _Stamp:
        stamps = []
        for name, path in self._paths():
            try:
                stat = os.stat(path)
            except OSError as error:
                raise _unusable(name, path, error) from error
            stamps.append(
                (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            )
        return tuple(stamps)

    def _load(self) -> _Loaded:
        read: dict[str, bytes] = {}
        for name, path in self._paths():
            try:
                read[name.removesuffix("_file")] = Path(path).read_bytes()
            except OSError as error:
                raise _unusable(name, path, error) from error
        settings = self._settings
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(settings.ca_file)
        except OSError as error:
            fault = certificate_fault(read["ca"])
            raise _unusable("ca_file", settings.ca_file, error, fault) from error
        try:
            make = server_context if settings.serves_tls else client_context
            pems, context, faults = Pems(**read), make(settings), self._judge(settings)
        except OSError as error:
            for name, fault_of in (
                ("certificate_file", certificate_fault),
                ("key_file", key_fault),
            ):
                content = read.get(name.removesuffix("_file"))
                if content is not None and (fault := fault_of(content)):
                    raise _unusable(name, getattr(settings, name), error, fault) from error
            raise ConfigurationError(
                f"security.certificate_file {settings.certificate_file} and security.key_file "
                f"{settings.key_file} cannot be used together: {_reason(error)}{_advice(error)}"
            ) from error
        try:
            require_usable(pems.ca, pems.certificate)
            if self._check is not None:
                self._check(pems)
        except ValueError as error:
            raise ConfigurationError(f"the files of [security] cannot be used: {error}") from error
        return pems, context, faults


def _no_faults(_settings: SecuritySettings) -> Mapping[str, str]:
    return {}


def _unusable(name: str, path: str, error: OSError, fault: str = "") -> ConfigurationError:
    reason = fault or _reason(error)
    return ConfigurationError(f"security.{name} {path} cannot be used: {reason}")


def _is_about_content(error: ConfigurationError) -> bool:
    """True if the files were read, but their content cannot be used until it changes."""
    return isinstance(error.__cause__, ssl.SSLError | ValueError)


def _is_mismatch(error: ConfigurationError) -> bool:
    """True if the certificate has another key, as in the middle of a renewal."""
    cause = error.__cause__
    return isinstance(cause, ssl.SSLError) and cause.reason in _MISMATCHES


def _advice(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason in _MISMATCHES:
        return "; if a renewal was interrupted, `bookie security renew` makes both anew"
    return ""


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (error.strerror or str(error)).lower()
