"""Labels that an operator gave a bookie; these labels override the labels in the bookie's settings.

The cluster's metadata store holds these labels, not the bookie's configuration file. So an operator
can change a bookie's labels from any machine, even while the bookie is stopped. Each bookie has one
record, such as ``rack=r1,zone=a``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bookie.cluster import keys
from bookie.cluster.instance import require_instance
from bookie.config.quantities import format_labels, parse_labels
from bookie.errors import BadVersionError, ConfigurationError, FormatError, NoSuchKeyError
from bookie.metadata.mirror import follow
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.store import MetadataStore


class BookieLabels:
    """The labels that operators gave the bookies of one cluster."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bookie_id: str) -> dict[str, str]:
        """Read the labels of a bookie, as a map from name to value; empty without labels.

        Raises:
            FormatError: the record is damaged.
        """
        return (await self._read(bookie_id))[0]

    async def change(
        self, bookie_id: str, labels: Mapping[str, str], remove: Iterable[str] = ()
    ) -> dict[str, str]:
        """Set and remove labels in one step; return the resulting labels.

        Raises:
            ConfigurationError: a name or value is invalid, or a label to remove is not set.
        """
        try:
            parse_labels(labels)
        except ValueError as error:
            raise ConfigurationError(f"the label {error}") from error
        gone = set(remove)
        while True:
            before, version = await self._read(bookie_id)
            for name in gone - before.keys():
                raise ConfigurationError(
                    f"bookie {bookie_id} has no label {name} in the cluster; labels of its own"
                    " settings are changed there"
                )
            after = {name: text for name, text in before.items() if name not in gone}
            after.update(labels)
            try:
                await self._write(bookie_id, after, version)
            except (BadVersionError, NoSuchKeyError):
                continue
            return after

    async def follow(
        self, bookie_id: str, take: Callable[[dict[str, str]], None], *, instance_id: str = ""
    ) -> None:
        """Call `take` with a bookie's labels, now and after each change; see `mirror.follow`.

        With an `instance_id`, labels of another cluster are not passed to `take`.
        """

        async def read() -> dict[str, str]:
            if instance_id:
                await require_instance(self._store, instance_id)
            return await self.read(bookie_id)

        await follow(self._store, keys.labels(bookie_id), read, take)

    async def _read(self, bookie_id: str) -> tuple[dict[str, str], int]:
        key = keys.labels(bookie_id)
        record = await self._store.get(key)
        if record is None:
            return {}, NOT_EXISTS
        try:
            labels = parse_labels(record.value.decode())
        except ValueError as error:
            raise FormatError(f"the metadata key {key} holds no labels: it {error}") from error
        assert isinstance(labels, dict)
        return labels, record.version

    async def _write(self, bookie_id: str, labels: Mapping[str, str], version: int) -> None:
        key = keys.labels(bookie_id)
        if labels:
            await self._store.put(key, format_labels(labels).encode(), version=version)
        elif version != NOT_EXISTS:
            await self._store.delete(key, version=version)
