"""The registered bookies, kept in memory and updated by a watch on the metadata store.

The directory keeps a bookie's address after the end of the registration, because a bookie without a
session continues to serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from bookie.cluster import keys
from bookie.cluster.endpoints import entries_endpoint
from bookie.cluster.registration_record import Endpoint, Registration, decode_registration
from bookie.config import SecuritySettings, Transport
from bookie.errors import BookieUnreachableError
from bookie.metadata.mirror import Mirror
from bookie.metadata.store import MetadataStore

_WITHOUT_TLS = SecuritySettings()


class BookieDirectory(Mirror[Registration]):
    """The registered bookies; an async context manager that keeps its data up to date.

    As soon as the context is entered, the directory knows all registered bookies. All methods read
    only memory. The data changes when a registration is created, changed or deleted.
    """

    def __init__(self, store: MetadataStore) -> None:
        # List writable bookies before read-only bookies. A bookie that turns read-only between the
        # two listings is then seen twice; it is not missed.
        super().__init__(
            store,
            keys.AVAILABLE,
            (keys.WRITABLE, keys.READ_ONLY),
            lambda record: decode_registration(record.value),
            self._take,
        )
        self._writable: dict[str, Registration] = {}
        self._read_only: dict[str, Registration] = {}
        self._last_known: dict[str, Registration] = {}
        self._arrivals: Counter[str] = Counter()
        self._on_arrival: Callable[[str], object] | None = None

    def bookies(self) -> Mapping[str, Registration]:
        """Return a snapshot of the bookies that accept new entries, by id."""
        return MappingProxyType(self._writable)

    def read_only(self) -> Mapping[str, Registration]:
        """Return a snapshot of the bookies that serve only reads, by id."""
        return MappingProxyType(self._read_only)

    def all(self) -> Mapping[str, Registration]:
        """Return a snapshot of all registered bookies, by id."""
        return MappingProxyType({**self._read_only, **self._writable})

    def names(self) -> frozenset[str]:
        """Return the ids of all registered bookies, including bookies whose record is unreadable.

        For example, this version of bookie cannot read a record that a newer version wrote.
        """
        keys_of_all = {*self.values, *self._unreadable}
        return frozenset(key.rpartition("/")[2] for key in keys_of_all)

    def resolve(
        self,
        bookie_id: str,
        security: SecuritySettings | None = None,
        transport: Transport = "grpc",
    ) -> Endpoint:
        """Return a bookie's current or last known address, for a client with `security` settings.

        `transport` says how the client wants to reach the bookie: by gRPC, by frames, or ``auto``.

        Raises:
            BookieUnreachableError: this directory never saw the bookie registered, or the
                registration names no address that fits `transport`.
            TlsError: `security` permits none of the bookie's addresses.
        """
        registration = self._last_known.get(bookie_id)
        if registration is None:
            raise BookieUnreachableError(f"bookie {bookie_id} is not registered")
        return entries_endpoint(registration, security or _WITHOUT_TLS, transport)

    def last_known(self, bookie_id: str) -> Registration | None:
        """Return a bookie's current or last known registration; None if there is none."""
        return self._last_known.get(bookie_id)

    def incarnation(self, bookie_id: str) -> str:
        """Return a bookie's current or last known incarnation; empty if unknown.

        A writer reads the incarnation when it reads the bookie's address, before it sends the first
        entry.
        """
        registration = self._last_known.get(bookie_id)
        return "" if registration is None else registration.incarnation

    def arrivals(self, bookie_id: str) -> int:
        """Return how many times this directory has seen the bookie become registered."""
        return self._arrivals[bookie_id]

    def on_arrival(self, callback: Callable[[str], object]) -> None:
        """Set the only callback, which is called with the id of each bookie that registers."""
        self._on_arrival = callback

    def _take(self, records: Mapping[str, Registration]) -> None:
        before = self.all()
        self._writable, self._read_only = {}, {}
        for key, registration in sorted(records.items()):
            side = self._writable if keys.is_writable(key) else self._read_only
            side[registration.bookie_id] = registration
        self._last_known |= self.all()
        arrived = sorted(self.all().keys() - before.keys())
        self._arrivals.update(arrived)
        if self._on_arrival is not None:
            for bookie_id in arrived:
                self._on_arrival(bookie_id)
