"""TLS and credentials for metadata servers; a metadata URI never contains credentials."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from bookie.config import MetadataSettings
from bookie.errors import ConfigurationError
from bookie.metadata.model import ACL_SCHEMES
from bookie.metadata.rights import Kind, Users

SaslMechanism: TypeAlias = Literal["none", "digest", "digest-md5"]
"""Authentication at ZooKeeper: none, ZooKeeper's scheme ``digest``, or SASL DIGEST-MD5.

etcd ignores this setting.
"""

Access: TypeAlias = Literal["open", "user", "kinds"]
"""The users with access to a ZooKeeper record that was put without an access control list.

``open``: everybody; ``user``: only the user that put the record; ``kinds``: the users of each kind
of process, with the rights of this kind (`rights`).
"""


@dataclass(frozen=True, slots=True)
class MetadataSecurity:
    """TLS files and credentials for ``zk://`` and ``etcd://``; by default there are none.

    Raises:
        ConfigurationError: a setting needs another setting, which is missing; the message names
            both.
    """

    tls_ca_file: Path | None = None
    """Certificates of the authorities that sign the servers' certificates.

    With this file, connections use TLS.
    """

    tls_certificate_file: Path | None = None
    """The certificate of this process, with its chain."""

    tls_key_file: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    sasl_mechanism: SaslMechanism = "none"
    access: Access = "open"
    users: Users = field(default_factory=dict)
    """For each kind of process, its users on ZooKeeper; used if `access` is ``kinds``."""

    def __post_init__(self) -> None:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ConfigurationError(
                "metadata.tls_certificate_file and metadata.tls_key_file go together"
            )
        if self.tls_certificate_file is not None and self.tls_ca_file is None:
            raise ConfigurationError(
                "metadata.tls_certificate_file needs metadata.tls_ca_file: without it the "
                "connection is not TLS"
            )
        if bool(self.user) != bool(self.password):
            raise ConfigurationError("metadata.user and metadata.password go together")
        if self.sasl_mechanism != "none" and not self.user:
            raise ConfigurationError("metadata.sasl_mechanism needs metadata.user")
        if self.access == "user" and self.sasl_mechanism == "none":
            raise ConfigurationError(
                'metadata.access = "user" needs metadata.sasl_mechanism: without it ZooKeeper '
                "does not know the user"
            )
        if self.access == "kinds" and not self.users.get(Kind.ADMIN):
            raise ConfigurationError(
                'metadata.access = "kinds" needs metadata.acl_admins: without an admin nobody'
                " could change the lists again"
            )
        if self.access != "kinds" and self.users:
            raise ConfigurationError('the lists metadata.acl_… need metadata.access = "kinds"')

    @property
    def uses_tls(self) -> bool:
        return self.tls_ca_file is not None


def security_of(settings: MetadataSettings) -> MetadataSecurity:
    """Return TLS files and credentials from the section ``[metadata]`` of the settings.

    Raises:
        ConfigurationError: a setting needs another setting, which is missing; the message names
            both.
    """
    return MetadataSecurity(
        tls_ca_file=_path(settings.tls_ca_file),
        tls_certificate_file=_path(settings.tls_certificate_file),
        tls_key_file=_path(settings.tls_key_file),
        user=settings.user,
        password=settings.password.get_secret_value(),
        sasl_mechanism=settings.sasl_mechanism,
        access=settings.access,
        users=_users(settings),
    )


def _users(settings: MetadataSettings) -> Users:
    lists = {
        Kind.READER: settings.acl_readers,
        Kind.WRITER: settings.acl_writers,
        Kind.BOOKIE: settings.acl_bookies,
        Kind.ADMIN: settings.acl_admins,
    }
    return {kind: _split(f"acl_{kind}s", text) for kind, text in lists.items() if text}


def _split(name: str, text: str) -> tuple[str, ...]:
    """Split a setting's text into users; the separator is ";", because users may contain commas."""
    users = tuple(user.strip() for user in text.split(";") if user.strip())
    for user in users:
        scheme, _, rest = user.partition(":")
        if scheme not in ACL_SCHEMES - {"auth"} or not rest:
            raise ConfigurationError(
                f"metadata.{name} must name users as SCHEME:ID, such as sasl:ann, not {user!r}"
            )
    return users


def _path(text: str) -> Path | None:
    return Path(text) if text else None
