"""Settings: one frozen section per component, from defaults, TOML file, environment and flags.

A component gets its own section, never the whole. An unknown key refuses to start. This package is
the only place that reads environment variables.
"""

from bookie.config.load import load_settings, require_bookie_id
from bookie.config.metadata_section import MetadataSettings
from bookie.config.render import render_toml
from bookie.config.sections import (
    BookieSettings,
    ClientSettings,
    GarbageSettings,
    HttpSettings,
    ListenSettings,
    LogSettings,
    NodeSettings,
    RpcSettings,
    Settings,
    StorageSettings,
)
from bookie.config.supervision import Supervision, read_failpoints, read_supervision

__all__ = [
    "BookieSettings",
    "ClientSettings",
    "GarbageSettings",
    "HttpSettings",
    "ListenSettings",
    "LogSettings",
    "MetadataSettings",
    "NodeSettings",
    "RpcSettings",
    "Settings",
    "StorageSettings",
    "Supervision",
    "load_settings",
    "read_failpoints",
    "read_supervision",
    "render_toml",
    "require_bookie_id",
]
