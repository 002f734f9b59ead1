"""Loads the certificate and key files of ``[security]``, again whenever they change."""

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
"""The shortest time between two checks of the files. A check costs three calls of stat."""

_Stamp: TypeAlias = tuple[tuple[int, ...], ...]
"""Device, inode, size, and the times of change of content and of owner, of each file."""

_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")

_PAUSE_SECONDS = 0.05
"""The time between two attempts to load files that are being renewed."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class Pems:
    """The content of the files at one moment; the key is the key of the certificate."""

    ca: bytes
    certificate: bytes = b""
    """Empty if the process has no certificate of its own."""
    key: bytes = field(default=b"", repr=False)


_Loaded: TypeAlias = tuple[Pems, ssl.SSLContext, Mapping[str, str]]


class PemFiles:
    """Holds the CA, and optionally a certificate with its key, and follows changes of the files.

    While changed files cannot be used, the content of the last usable files stays. A program that
    renews a certificate writes two files, one after the other, so they do not match for a moment.

    Args:
        settings: names the files; `ca_file` is set.
        clock: measures the time between two checks of the files.
        check: an additional check of new content; raises ValueError to refuse the content.
        patience_seconds: how long the first load waits, in the calling thread, for usable files. It
            waits only if a file changed within this time, or key and certificate do not match.
        judge: returns the reasons of peers to refuse the certificate, like `faults_of`. Changed
            files are refused if they have a fault of a kind that the used files do not have.

    Raises:
        ConfigurationError: a file cannot be read, or the files cannot be used.
        CannotStartError: key and certificate still do not match after `patience_seconds`; a later
            start may succeed, because a renewal may be under way.
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
        """The content of the files, the SSL context for HTTP, and the faults of the certificate.

        The context is a server's if the settings name a certificate, otherwise a client's. A fault
        is a reason of peers to refuse the certificate: kind → sentence.
        """

    def client_context(self) -> ssl.SSLContext:
        """Return an SSL context for requests to the HTTP servers of bookies."""
        return client_context(self._settings)

    @property
    def settings(self) -> SecuritySettings:
        """The settings in ``[security]``, which name the files."""
        return self._settings

    def refresh(self) -> bool:
        """Load changed files, checked at most once a second; return True if new content is used.

        If the content cannot be used, the error is logged once, and the files are loaded again when
        a file changes. If a file cannot be read, each check tries again, because a repair of its
        directory does not change the file. If peers would refuse the certificate, each check tries
        again, because the certificate may become valid later.
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
        """True if any existing file changed within the last `seconds`."""
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
    """True if the files could be read, but not used, so only changed content can help."""
    return isinstance(error.__cause__, ssl.SSLError | ValueError)


def _is_mismatch(error: ConfigurationError) -> bool:
    """True if the key is not the certificate's key, which can happen during a renewal."""
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
