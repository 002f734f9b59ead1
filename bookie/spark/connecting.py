"""Connect Spark's processes to the cluster, with one client for each process."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import bookie
from bookie.errors import BadRequestError, ConfigurationError
from bookie.metadata.uri import require_shared
from bookie.spark.options import SparkOptions
from bookie.sync import SyncBookKeeper, shared_client


@dataclass(frozen=True, slots=True)
class SparkConnection:
    """The cluster's URI and the secrets that open its ledgers; Spark sends it to the executors.

    Secrets are sent as paths of files, and each machine reads its own file.
    """

    metadata_uri: str
    password_file: str = ""
    version: str = bookie.__version__
    """The version of bookie that planned the query; a task with another version refuses to run."""

    def client(self) -> SyncBookKeeper:
        """Return the client that all users in this process share.

        Raises:
            ConfigurationError: the package here has another version than the one that planned.
        """
        if self.version != bookie.__version__:
            host = socket.gethostname()
            raise ConfigurationError(
                package_differs(f"executor {host}", bookie.__version__, self.version)
            )
        return shared_client(self.metadata_uri)

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
    """Take from the options how to connect; each read and each write has these options.

    Raises:
        BadRequestError, ConfigurationError: one is missing or wrong.
    """
    uri = options.take("metadata", "metadataServiceUri")
    if uri is None:
        raise BadRequestError("the option metadata is missing: the URI of the metadata store")
    require_shared(uri)
    connection = SparkConnection(uri, options.take("passwordFile") or "")
    connection.password()
    return connection


def package_differs(where: str, found: str, wanted: str) -> str:
    """Return the message that a process has another version of the package than the driver."""
    return (
        f"{where} has bookie {found}, and the driver has {wanted}; install one version "
        "everywhere, or pass --py-files with the zip of `bookie spark package`"
    )
