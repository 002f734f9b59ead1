"""Makes gRPC credentials for servers and clients from the files of the settings ``[security]``.

At each handshake, gRPC asks `ServerSecurity` for changed credentials, so a change ends no
connection. A channel keeps the credentials with which it was opened. After a change,
`ChannelSecurity` returns new credentials. The client uses them when it must open another channel,
because the old channel has lost its bookie.

A client's token does not belong to a channel: `BookieChannel` adds the current token to the
metadata of each call. So a new token needs no new channel. gRPC's own way is a plugin for call
credentials, which starts a thread for each call. A call by TLS takes 480 µs without a token, 520 µs
with the token in its metadata, and 670 µs with the plugin.

gRPC for Python has no setting for the lowest version of TLS. Its library offers TLS 1.2 and 1.3. If
both ends use gRPC, they agree on TLS 1.3. TLS 1.3 itself detects an attacker who tries to make them
use TLS 1.2.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any, Final

import grpc

from bookie.config import SecuritySettings
from bookie.security import PemFiles, Pems
from bookie.security.token_file import TokenFile

DRAIN_SECONDS: Final = 0.02
"""The pause of the first handshake after a change, before gRPC replaces the configuration.

gRPC frees the old configuration, although threads that begin other handshakes may still use it for
some microseconds. During the pause no other handshake begins, because gRPC holds a lock.
Source: https://github.com/grpc/grpc/issues/36693
"""


RENEWAL_SECONDS: Final = 0.5
"""The longest time that a client waits until a renewed certificate and its key fit together."""


class ServerSecurity:
    """The credentials of a bookie's gRPC server, made from the files of ``[security]``.

    Each handshake uses the content that `PemFiles` last read from the files.
    """

    def __init__(self, files: PemFiles) -> None:
        self._files = files
        self._made_of = files.pems

    def credentials(self) -> Any:
        self._made_of = self._files.pems
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._made_of),
            self._present,
            self._files.settings.require_client_certificate,
        )

    def _present(self) -> Any:
        """Return the configuration for a handshake; None if the files have not changed.

        A thread of gRPC calls this method. gRPC replaces its configuration by each result and frees
        the old one, which other handshakes may still use. So this method must not return an
        unchanged configuration, because that would risk a crash without need.
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
        CannotStartError: certificate and key do not belong together, for example during a renewal.
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

    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context for a connection by frames: the same until a file changes.

        None if the settings name no CA.
        """
        if self._files is None:
            return None
        self._files.refresh()
        return self._files.client_context()

    def authorization(self) -> str:
        """Return the value for the metadata key ``authorization``; empty without a token."""
        return "" if self._token is None else self._token.authorization()


def _configuration(pems: Pems) -> Any:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.ca)
