"""The section ``[security]``: TLS between bookies, clients and commands."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from bookie.config.section import Section


class SecuritySettings(Section):
    """TLS on the ports of a bookie, and on connections to bookies. Clients use this section, too.

    Certificates and keys are PEM files. A running process loads changed files within seconds.
    docs/security.md tells how to make the files, and how to change a running cluster to TLS.
    """

    own: ClassVar[bool] = True

    certificate_file: str = Field(
        default="",
        description="Our own certificate, with its chain. A bookie with a certificate speaks TLS on"
        " all its ports. It needs key_file and ca_file.",
    )
    key_file: str = Field(
        default="", description="The key of our own certificate, without a passphrase."
    )
    ca_file: str = Field(
        default="",
        description="The CA certificates that sign the certificates of peers. A client with a CA"
        " connects by TLS, and verifies the host name of each bookie.",
    )
    token_keys_file: str = Field(
        default="",
        description="The keys (JWK set) that sign the tokens of clients. A bookie with keys accepts"
        " tokens beside certificates. `bookie security token-key` makes them.",
    )
    token_file: str = Field(
        default="",
        description="The token (JWT) that a client sends with each call. It needs ca_file: a token"
        " travels only by TLS. The file is read again when it changes.",
    )
    require_client_certificate: bool = Field(
        default=True,
        description="A bookie that speaks TLS refuses clients without a certificate of the CA.",
    )
    allow_plaintext: bool = Field(
        default=False,
        description="A bookie without a certificate may listen beyond loopback. A bookie with one"
        " also serves clients without TLS, at listen.plaintext_port. A client with a CA may also"
        " use bookies without TLS.",
    )

    require_roles: bool = Field(
        default=True,
        description="A bookie that speaks TLS lets callers do only what their roles permit; see"
        " `bookie security role`.",
    )
    principal_rules: str = Field(
        default="cn:(.+)",
        description="How a certificate becomes the name to which roles are given: rules, separated"
        " by spaces. cn:REGEX must fit the whole common name, san:REGEX an alternative name; the"
        " first group is the name. The first rule that fits decides.",
    )

    @property
    def uses_tls(self) -> bool:
        """True if a process with these settings uses TLS for connections to bookies."""
        return bool(self.ca_file)

    @property
    def serves_tls(self) -> bool:
        """True if a bookie with these settings speaks TLS."""
        return bool(self.certificate_file)

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file go together")
        if self.certificate_file and not self.ca_file:
            raise ValueError("certificate_file needs ca_file, the CA of the peers' certificates")
        if self.token_file and not self.ca_file:
            raise ValueError("token_file needs ca_file: a token travels only by TLS")
        return self
