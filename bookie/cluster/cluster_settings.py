"""Cluster settings, one record for each; a bookie's own settings override cluster settings.

Before a change, all cluster settings are checked together. A change is one transaction, which also
writes the parent record ``config/settings``. The version of ``config/settings`` orders all changes,
so two valid changes never combine into invalid settings. ``bookie metadata put`` writes a setting
without a check, so bookies check all cluster settings again.

Source: the dynamic configuration of PIP-45's brokers, one record per key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bookie.cluster import keys
from bookie.cluster.instance import require_instance
from bookie.config import check_cluster_settings, find_setting
from bookie.errors import BadVersionError, ConfigurationError, FormatError, NoSuchKeyError
from bookie.metadata.mirror import follow
from bookie.metadata.model import NOT_EXISTS, Delete, Put, Record
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

_log = event_log(__name__)


class ClusterSettings:
    """Reads and changes the settings of one cluster; a value is text, as in a command-line flag."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self) -> dict[str, str]:
        """Return all settings by name, in a consistent snapshot; their values are not checked.

        Raises:
            FormatError: a record is not text.
        """
        return (await self._read())[0]

    async def read_known(self) -> dict[str, str]:
        """Return the settings that this version knows; log each unknown setting.

        A newer version may have written the unknown settings.
        """
        settings = await self.read()
        known = _known(settings)
        for name in sorted(settings.keys() - known.keys()):
            _log.warning("setting_ignored", key=name, reason="this version does not know it")
        return known

    async def set(self, values: Mapping[str, str]) -> None:
        """Set several settings; if one of them is refused, set none.

        Raises:
            ConfigurationError: a setting is unknown, or cannot be a cluster setting. The error also
                means that a value is wrong, or contradicts another cluster setting or a default.
            FormatError: the record of a stored setting is not text; remove the setting with
                `unset`.
        """
        while True:
            before, version = await self._read()
            check_cluster_settings({**_known(before), **values})
            puts = [Put(keys.setting(name), text.encode()) for name, text in values.items()]
            if await self._change(version, puts):
                return

    async def unset(self, names: Iterable[str]) -> None:
        """Remove several settings; if one of them cannot be removed, remove none.

        Without a cluster setting, bookies use their own values or the defaults.

        Raises:
            ConfigurationError: one of the settings is not set. The error also means that valid
                settings would contradict each other or a default after the removal.
        """
        wanted = sorted(set(names))
        while True:
            present = set(await self._store.get_children(keys.SETTINGS))
            for name in wanted:
                if name not in present:
                    raise ConfigurationError(f"there is no cluster setting {name}")
            version = await self._check_without(wanted)
            if await self._change(version, [Delete(keys.setting(name)) for name in wanted]):
                return

    async def follow(
        self, take: Callable[[dict[str, str]], None], *, instance_id: str = ""
    ) -> None:
        """Call `take` with all known settings, now and after each change; see `mirror.follow`.

        If `instance_id` is given, `take` is not called while the store holds another cluster.
        """

        async def read() -> dict[str, str]:
            if instance_id:
                await require_instance(self._store, instance_id)
            return await self.read_known()

        await follow(self._store, keys.SETTINGS, read, take)

    async def _check_without(self, names: list[str]) -> int:
        try:
            settings, version = await self._read()
            before = _known(settings)
            check_cluster_settings(before)
        except (FormatError, ConfigurationError):
            # If the settings are already invalid, any setting may be removed.
            return await self._version()
        check_cluster_settings({n: text for n, text in before.items() if n not in names})
        return version

    async def _read(self) -> tuple[dict[str, str], int]:
        """Return all settings, and the version of ``config/settings`` to which they belong."""
        while True:
            version = await self._version()
            settings = {}
            async for record in self._store.scan_children(keys.SETTINGS):
                settings[record.name] = setting_text(record)
            if await self._version() == version:
                return settings, version

    async def _version(self) -> int:
        record = await self._store.get(keys.SETTINGS)
        return NOT_EXISTS if record is None else record.version

    async def _change(self, version: int, operations: list[Put] | list[Delete]) -> bool:
        """Write a change; return False if ``config/settings`` no longer has `version`."""
        try:
            await self._store.transaction([Put(keys.SETTINGS, b"", version), *operations])
        except (BadVersionError, NoSuchKeyError):
            return False
        return True


def setting_text(record: Record) -> str:
    """Return the text of a setting; raise FormatError if the record is not text."""
    try:
        return record.value.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"the metadata key {record.key} is no text") from error


def _known(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in settings.items() if find_setting(name) is not None}
