"""gRPC's credentials of both ends, from the files of ``[security]``.

A server takes its certificate anew for each handshake, so a changed file ends no connection. A
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

from typing import Any

import grpc

from bookie.config import SecuritySettings
from bookie.security import PemFiles, Pems
from bookie.security.token_file import TokenFile


class ServerSecurity:
    """The credentials of a bookie's gRPC server; they follow the files."""

    def __init__(self, files: PemFiles) -> None:
        self._files = files
        self._made_of = files.pems
        self._configuration = _configuration(files.pems)

    def credentials(self) -> Any:
        """Return the credentials for a server's port."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._present,
            self._files.settings.require_client_certificate,
        )

    def _present(self) -> Any:
        """Return the configuration for one handshake; a thread of gRPC calls this."""
        pems = self._files.pems
        if pems is not self._made_of:
            self._configuration, self._made_of = _configuration(pems), pems
        return self._configuration


class ChannelSecurity:
    """The credentials of a client's channels; by default there are none.

    Raises:
        ConfigurationError: a file cannot be used.
    """

    def __init__(self, settings: SecuritySettings | None = None) -> None:
        self.settings = settings or SecuritySettings()
        self._files = PemFiles(self.settings) if self.settings.uses_tls else None
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
