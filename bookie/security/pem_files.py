"""Loads the certificate and key files of ``[security]``, and reloads them when they change."""

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
from bookie.env import Clock
from bookie.errors import CannotStartError, ConfigurationError
from bookie.security.contexts import client_context, server_context
from bookie.security.followed_file import LOOK_SECONDS, Followed, Stamp, reason_of, unusable
from bookie.security.usable import certificate_fault, key_fault, require_usable
from bookie.telemetry import event_log

_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")

_PAUSE_SECONDS = 0.05
"""The time between two attempts to load files that are being renewed."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class Pems:
    """The content of the files at one moment; the key belongs to the certificate."""

    ca: bytes
    certificate: bytes = b""
    """Empty if the process has no certificate of its own."""
    key: bytes = field(default=b"", repr=False)


_Loaded: TypeAlias = tuple[Pems, ssl.SSLContext, ssl.SSLContext, Mapping[str, str]]


class PemFiles(Followed[_Loaded]):
    """Holds the CA, and optionally a certificate with its key.

    A program that renews a certificate writes two files, one after the other, so the files do not
    match for a moment. If peers would refuse a changed certificate, each check of the files tries
    again, because the certificate may become valid later.

    Args:
        settings: names the files; `ca_file` is set.
        clock: measures the time between two checks of the files.
        check: an additional check of new content; raises ValueError to refuse the content.
        patience_seconds: the longest time that the first load waits for usable files; the wait
            blocks the calling thread. The load waits only if a file changed within this time, or
            key and certificate do not match.
        judge: returns the reasons why peers would refuse the certificate, like `faults_of`. Changed
            files are refused if they have a kind of fault that the files now in use do not have.

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
        super().__init__(clock)
        self._settings = settings
        self._check = check
        self._judge = judge or _no_faults
        self._stamp, loaded = self._load_first(patience_seconds)
        self.pems, self.context, self._client_context, self.faults = loaded
        """The content of the files, the SSL context for HTTP, and the faults of the certificate.

        The context is for a server if the settings name a certificate, otherwise for a client. A
        fault is a reason why peers would refuse the certificate: kind → sentence.
        """

    def client_context(self) -> ssl.SSLContext:
        """Return the SSL context for connections to bookies: the same until the files change."""
        return self._client_context

    @property
    def settings(self) -> SecuritySettings:
        return self._settings

    def _reload(self) -> _Loaded:
        loaded = self._load()
        self._require_no_new(loaded[-1])
        return loaded

    def _take(self, loaded: _Loaded) -> None:
        self.pems, self.context, self._client_context, self.faults = loaded

    def _tell(self, refusal: str) -> None:
        if refusal:
            _log.warning("certificate_not_reloaded", reason=refusal)
        else:
            _log.info("certificate_reloaded", certificate=self._settings.certificate_file)

    def _load_first(self, patience_seconds: float) -> tuple[Stamp, _Loaded]:
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
        paths = {f"security.{name}": getattr(self._settings, name) for name in named}
        return [(setting, path) for setting, path in paths.items() if path]

    def _load(self) -> _Loaded:
        read: dict[str, bytes] = {}
        for setting, path in self._paths():
            name = setting.removeprefix("security.").removesuffix("_file")
            try:
                read[name] = Path(path).read_bytes()
            except OSError as error:
                raise unusable(setting, path, error) from error
        settings = self._settings
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(settings.ca_file)
        except OSError as error:
            fault = certificate_fault(read["ca"])
            raise unusable("security.ca_file", settings.ca_file, error, fault) from error
        try:
            context = of_client = client_context(settings)
            if settings.serves_tls:
                context = server_context(settings)
            pems, faults = Pems(**read), self._judge(settings)
        except OSError as error:
            for name, fault_of in (("certificate", certificate_fault), ("key", key_fault)):
                content = read.get(name)
                if content is not None and (fault := fault_of(content)):
                    path = getattr(settings, f"{name}_file")
                    raise unusable(f"security.{name}_file", path, error, fault) from error
            raise ConfigurationError(
                f"security.certificate_file {settings.certificate_file} and security.key_file "
                f"{settings.key_file} cannot be used together: {reason_of(error)}{_advice(error)}"
            ) from error
        try:
            require_usable(pems.ca, pems.certificate)
            if self._check is not None:
                self._check(pems)
        except ValueError as error:
            raise ConfigurationError(f"the files of [security] cannot be used: {error}") from error
        return pems, context, of_client, faults


def _no_faults(_settings: SecuritySettings) -> Mapping[str, str]:
    return {}


def _is_mismatch(error: ConfigurationError) -> bool:
    """True if the key is not the certificate's key, which can happen during a renewal."""
    cause = error.__cause__
    return isinstance(cause, ssl.SSLError) and cause.reason in _MISMATCHES


def _advice(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason in _MISMATCHES:
        return "; if a renewal was interrupted, `bookie security renew` makes both anew"
    return ""
