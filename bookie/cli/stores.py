"""How commands open the metadata store that ``--metadata`` names, and the configuration store."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.metadata.store import MetadataStore


def open_metadata(
    uri: str, config: Path | None = None
) -> AbstractAsyncContextManager[MetadataStore]:
    """The store; TLS and credentials come from the section ``[metadata]`` of the settings.

    `config` is a file of settings; None takes the one that BOOKIE_CONFIG names, if it names one.

    Raises:
        ConfigurationError: the URI is wrong, or the settings are.
    """
    from bookie.metadata.connect import open_store
    from bookie.metadata.uri import split_uri

    if split_uri(uri).scheme in ("memory", "local"):
        return open_store(uri)
    # Loading settings takes longer than what most commands do on a local store.
    from bookie.config import load_settings
    from bookie.metadata.security import security_of

    return open_store(uri, security=security_of(load_settings(config).metadata))


def open_configuration(uri: str) -> AbstractAsyncContextManager[MetadataStore]:
    """The store of namespaces and policies: ``metadata.configuration_uri``, or the one of `uri`.

    Raises:
        ConfigurationError: a URI is wrong, or the settings are.
    """
    from bookie.config import load_settings

    return open_metadata(load_settings().metadata.configuration_uri or uri)
