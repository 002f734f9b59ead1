"""The settings of a running bookie, which change when the cluster's settings change.

A bookie fetches the cluster settings before it opens its directories and port, because the cluster
settings may name the directories and the port. While the bookie serves, it merges each change of a
cluster setting with the values that it read from file, environment and flags at the start. A
changed dynamic setting applies at once. For any other changed setting, the bookie logs that the
setting needs a restart. The bookie logs and ignores an invalid change, but applies valid changes of
the same transaction. At the start, an invalid cluster setting is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from bookie.cluster.cluster_settings import ClusterSettings
from bookie.config import Settings, Sources
from bookie.config.quantities import format_labels
from bookie.config.section import Section, is_dynamic
from bookie.errors import ConfigurationError
from bookie.metadata.connect import open_store
from bookie.metadata.security import security_of
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

_LEVELS = ("debug", "info", "warning", "error")

_log = event_log(__name__)


def open_configured(settings: Settings) -> AbstractAsyncContextManager[MetadataStore]:
    """Return the store that `[metadata]` names, with its session timeout, TLS and credentials.

    Raises:
        ConfigurationError: the URI or the credentials are wrong.
    """
    return open_store(
        settings.metadata.uri,
        session_timeout_seconds=settings.metadata.session_timeout_seconds,
        security=security_of(settings.metadata),
        create=False,
    )


async def fetch_cluster_settings(settings: Settings) -> dict[str, str]:
    """Return the known cluster settings by name, from the store that `[metadata]` names.

    Raises:
        ConfigurationError: the URI or the credentials are wrong.
        MetadataUnavailableError: the store does not answer.
        FormatError: the record of a cluster setting is not text.
    """
    async with open_configured(settings) as store:
        return await ClusterSettings(store).read_known()


class LiveSettings:
    """The settings of a running bookie, which change when the cluster settings change.

    Args:
        sources: the values from file, environment and flags at the start.
        cluster: the cluster settings at the start.

    Raises:
        ConfigurationError: the merged settings are not valid.
    """

    def __init__(self, sources: Sources, cluster: Mapping[str, str]) -> None:
        self.sources = sources
        self._own = sources.origins()
        self._cluster = dict(cluster)
        self._wanted = self.settings = sources.settings(cluster)
        self._ignored: dict[str, str | None] = {}

    @property
    def cluster(self) -> list[str]:
        """Return the names of all valid cluster settings, including overridden settings."""
        return sorted(self._cluster)

    @property
    def overridden(self) -> list[str]:
        """Return the names of the cluster settings that the bookie's own settings override."""
        return sorted(self._cluster.keys() & self._own.keys())

    def take(self, cluster: Mapping[str, str], apply: Callable[[Settings], None]) -> None:
        """Merge new cluster settings, log changes, and call `apply` if a dynamic setting changed.

        Only dynamic settings change; a change of any other setting waits for a restart.
        """
        before, self._cluster = self._cluster, self._acceptable(cluster)
        for name in sorted(self._own.keys() & _differing(before, self._cluster)):
            _log.info("setting_overridden", key=name, by=self._own[name])
        old, self._wanted = self._wanted, self.sources.settings(self._cluster)
        running, self.settings = self.settings, _with_dynamic(self.settings, self._wanted)
        # If the log level changes, log all changes at the more verbose of the old and the new
        # level.
        quieter = _LEVELS.index(self.settings.log.level) > _LEVELS.index(running.log.level)
        if quieter:
            self._tell(old, running)
        if self.settings != running:
            apply(self.settings)
        if not quieter:
            self._tell(old, running)

    def _tell(self, old: Settings, running: Settings) -> None:
        was, wanted, wanted_before = map(_values, (running, self._wanted, old))
        for name, value in _values(self.settings).items():
            if value != was[name]:
                _log.info("setting_changed", key=name, value=_text(value), was=_text(was[name]))
            elif wanted[name] not in (value, wanted_before[name]):
                _log.warning(
                    "setting_needs_restart",
                    key=name,
                    value=_text(wanted[name]),
                    runs_with=_text(value),
                )

    def _acceptable(self, cluster: Mapping[str, str]) -> dict[str, str]:
        """Return `cluster` if it is valid; else return the old settings and the valid changes."""
        taken = dict(self._cluster)
        left = {name: cluster.get(name) for name in _differing(taken, cluster)}
        if self._problem(cluster) is None:
            taken, left = dict(cluster), {}
        reasons: dict[str, str] = {}
        seen = -1
        while left and seen != len(left):
            # A change is sometimes valid only after another change has been applied.
            seen = len(left)
            for name in sorted(left):
                text = left[name]
                changed = {key: value for key, value in taken.items() if key != name}
                changed |= {} if text is None else {name: text}
                problem = self._problem(changed)
                if problem is None:
                    taken = changed
                    del left[name]
                else:
                    reasons[name] = problem
        for name, text in sorted(left.items()):
            if name not in self._ignored or self._ignored[name] != text:
                _log.warning("setting_ignored", key=name, reason=reasons[name])
        self._ignored = left
        return taken

    def _problem(self, cluster: Mapping[str, str]) -> str | None:
        try:
            self.sources.settings(cluster)
        except ConfigurationError as error:
            return str(error)
        return None


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _with_dynamic(running: Settings, wanted: Settings) -> Settings:
    """Return `running`, but with the values of `wanted` for all dynamic settings."""
    sections: dict[str, Section] = {}
    for name in Settings.model_fields:
        old, new = getattr(running, name), getattr(wanted, name)
        fields = type(old).model_fields.items()
        sections[name] = old.model_copy(
            update={key: getattr(new, key) for key, field in fields if is_dynamic(field)}
        )
    return running.model_copy(update=sections)


def _values(settings: Settings) -> dict[str, object]:
    """Return the values of all settings by their names, ``section.key``."""
    return {
        f"{section}.{key}": getattr(getattr(settings, section), key)
        for section in Settings.model_fields
        for key in type(getattr(settings, section)).model_fields
    }


def _text(value: object) -> str | int | float | bool:
    """Return the value of a setting in the form that log lines use."""
    if isinstance(value, Mapping):
        return format_labels(value)
    return value if isinstance(value, str | int | float) else str(value)
