"""Connect Spark's processes to the cluster, with one client for each process."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import bookie
from bookie.errors import BadRequestError, ConfigurationError
from bookie.metadata.uri import require_shared
from bookie.spark.options import SparkOptions

if TYPE_CHECKING:
    from bookie.api import ClientOptions
    from bookie.sync import SyncBookKeeper

FILE_OPTIONS = {
    "caFile": "ca_file",
    "certificateFile": "certificate_file",
    "keyFile": "key_file",
    "tokenFile": "token_file",
}
"""Options of a query → the settings of ``[security]`` that these options set."""


@dataclass(frozen=True, slots=True)
class SparkConnection:
    """The cluster's URI and the paths of secret files, which Spark sends to the executors.

    Each machine reads the secrets from its own files.
    """

    metadata_uri: str
    password_file: str = ""
    security: tuple[tuple[str, str], ...] = ()
    """Pairs of name and path: the settings of ``[security]`` that are paths of files."""
    version: str = bookie.__version__
    """The version of bookie that planned the query. A task with another version refuses to run."""

    def client(self) -> SyncBookKeeper:
        """Return a client of the cluster; all code in this process gets the same client.

        Raises:
            ConfigurationError: this process has another version of bookie than the process that
                planned the query.
        """
        if self.version != bookie.__version__:
            host = socket.gethostname()
            raise ConfigurationError(
                package_differs(f"executor {host}", bookie.__version__, self.version)
            )
        # The import takes 0.5 to 0.9 s, and some of Spark's processes need no client.
        from bookie.sync import shared_client

        given: ClientOptions = dict(self.security)  # type: ignore[assignment]
        return shared_client(self.metadata_uri, **given)

    def password(self) -> bytes:
        """Return the password of the ledgers, read from a file of this machine.

        Raises:
            BadRequestError: the file cannot be read.
        """
        if not self.password_file:
            return b""
        try:
            return Path(self.password_file).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise BadRequestError(
                f"the option passwordFile names {self.password_file}, which cannot be read: "
                f"{error.strerror}"
            ) from error


def take_connection(options: SparkOptions) -> SparkConnection:
    """Parse the options that say how to connect to the cluster.

    Raises:
        BadRequestError, ConfigurationError: an option is missing or wrong.
    """
    uri = options.take("metadata", "metadataServiceUri")
    if uri is None:
        raise BadRequestError("the option metadata is missing: the URI of the metadata store")
    require_shared(uri)
    password_file = options.take("passwordFile") or ""
    files = {name: options.take(option) for option, name in FILE_OPTIONS.items()}
    security = tuple((name, path) for name, path in files.items() if path)
    connection = SparkConnection(uri, password_file, security)
    connection.password()
    return connection


def package_differs(where: str, found: str, wanted: str) -> str:
    """Return the error message for a process that has another version of bookie than the driver."""
    return (
        f"{where} has bookie {found}, and the driver has {wanted}; install one version "
        "everywhere, or pass --py-files with the zip of `bookie spark package`"
    )
