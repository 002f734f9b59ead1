"""Settings: one immutable section for each component.

The values come from defaults, the cluster's settings, a file, environment variables and flags. A
component gets only its own section. An unknown key is an error when the program starts. Only this
package reads settings from environment variables.
"""

from bookie.config.client_sections import (
    ClientSettings,
    MetadataSettings,
    PlacementSettings,
    Transport,
)
from bookie.config.deprecation import warn_deprecated
from bookie.config.grpc_poller import with_free_poller
from bookie.config.grpc_transport import grpc_polling, silence_grpc
from bookie.config.load import (
    Sources,
    check_cluster_settings,
    find_log_format,
    load_settings,
    require_bookie_id,
)
from bookie.config.render import find_setting, given_values, render_defaults, render_toml
from bookie.config.sections import (
    BookieSettings,
    GarbageSettings,
    NodeSettings,
    RepairSettings,
    RpcSettings,
    Settings,
    StorageSettings,
)
from bookie.config.security_section import SecuritySettings
from bookie.config.supervision import Supervision, read_failpoints, read_supervision

__all__ = [
    "BookieSettings",
    "ClientSettings",
    "GarbageSettings",
    "MetadataSettings",
    "NodeSettings",
    "PlacementSettings",
    "RepairSettings",
    "RpcSettings",
    "SecuritySettings",
    "Settings",
    "Sources",
    "StorageSettings",
    "Supervision",
    "Transport",
    "check_cluster_settings",
    "find_log_format",
    "find_setting",
    "given_values",
    "grpc_polling",
    "load_settings",
    "read_failpoints",
    "read_supervision",
    "render_defaults",
    "render_toml",
    "require_bookie_id",
    "silence_grpc",
    "warn_deprecated",
    "with_free_poller",
]
