"""gRPC's credentials of both ends, from the files of ``[security]``.

A server asks for a changed certificate at each handshake, so a changed file ends no connection. A
channel keeps the credentials with which it was opened. After a change, `ChannelSecurity` returns
other credentials, and the client opens another channel when the old one has lost its bookie.

A client's token is no part of a channel: `BookieChannel` asks for it at each call. So a new token
needs no new channel. gRPC's own way, a plugin for call credentials, starts a thread for each call:
of 480 µs for a call by TLS it made 670 µs, and the metadata of the call make 520 µs.

gRPC for Python has no setting for the lowest version of TLS. Its library offers TLS 1.2 and 1.3.
Two ends that are both gRPC agree on 1.3, and TLS 1.3 itself finds out if somebody in between talks
them down to 1.2.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import grpc

from bookie.config import SecuritySettings
from bookie.security import PemFiles, Pems
from bookie.security.token_file import TokenFile

DRAIN_SECONDS: Final = 0.02
"""How long the first handshake after a change waits, before gRPC replaces the configuration.

gRPC frees the former one, although threads that begin other handshakes may still use it. They do so
for microseconds, and none begins meanwhile: gRPC asks under its lock.
Source: https://github.com/grpc/grpc/issues/36693
"""


RENEWAL_SECONDS: Final = 0.5
"""How long a client waits at most for certificate and key that are being renewed."""


class ServerSecurity:
    """The credentials of a bookie's gRPC server, made from the files of ``[security]``.

    Each handshake uses the content that `PemFiles` took last.
    """

    def __init__(self, files: PemFiles) -> None:
        self._files = files
        self._made_of = files.pems

    def credentials(self) -> Any:
        """Return the credentials for the one port of a server."""
        self._made_of = self._files.pems
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._made_of),
            self._present,
            self._files.settings.require_client_certificate,
        )

    def _present(self) -> Any:
        """Return the configuration for one handshake; None if it is the former one.

        A thread of gRPC calls this. Each configuration that it gets replaces the former one, so an
        unchanged one must not be returned: handshakes that run beside this one would crash.
        """
        pems = self._files.pems
        if pems is self._made_of:
            return None
        configuration = _configuration(pems)
        threading.Event().wait(DRAIN_SECONDS)
        self._made_of = pems
        return configuration


class ChannelSecurity:
    """The credentials of a client's channels; by default there are none.

    Raises:
        ConfigurationError: a file cannot be used.
        CannotStartError: certificate and key do not fit together, as in the middle of a renewal.
    """

    def __init__(self, settings: SecuritySettings | None = None) -> None:
        self.settings = settings or SecuritySettings()
        self._files: PemFiles | None = None
        if self.settings.uses_tls:
            self._files = PemFiles(self.settings, patience_seconds=RENEWAL_SECONDS)
        self._token: TokenFile | None = None
        if self.settings.token_file:
            self._token = TokenFile(self.settings.token_file)
        self._made_of: Pems | None = None
        self._credentials: Any = None

    def credentials(self) -> Any:
        """Return the credentials for a new channel: the same object until a file changes.

        None if the settings name no CA.
        """
        if self._files is None:
            return None
        self._files.refresh()
        pems = self._files.pems
        if pems is not self._made_of:
            self._credentials = grpc.ssl_channel_credentials(
                pems.ca, pems.key or None, pems.certificate or None
            )
            self._made_of = pems
        return self._credentials

    def authorization(self) -> str:
        """Return the value that goes with each call by TLS; empty without a token."""
        return "" if self._token is None else self._token.authorization()


def _configuration(pems: Pems) -> Any:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.ca)
