"""The managers of one cluster, made together after its layout and identity were checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import read_instance_id
from bookie.cluster.layout import LayoutManager, LedgerLayout
from bookie.cluster.ledger_ids import LedgerIdGenerator
from bookie.cluster.ledgers import LedgerManager
from bookie.cluster.namespaces import NamespaceManager
from bookie.cluster.registration import RegistrationManager
from bookie.cluster.underreplication import UnderreplicationManager
from bookie.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class LedgerManagerFactory:
    """Makes managers that agree on where the ledgers of a cluster lie."""

    store: MetadataStore
    layout: LedgerLayout
    instance_id: str

    @classmethod
    async def open(cls, store: MetadataStore) -> Self:
        """The factory for the cluster in `store`.

        Raises:
            NoSuchKeyError: there is no cluster.
            FormatError: its layout or its id is damaged, or of a newer version.
        """
        instance_id = await read_instance_id(store)
        return cls(store, await LayoutManager(store).read(), instance_id)

    def ledgers(self) -> LedgerManager:
        """The metadata of ledgers."""
        return LedgerManager(self.store, self.layout)

    def ledger_ids(self) -> LedgerIdGenerator:
        """Fresh ledger ids."""
        return LedgerIdGenerator(self.store)

    def underreplication(self, worker: str = "") -> UnderreplicationManager:
        """Ledgers that lack copies, taken in the name of `worker`."""
        return UnderreplicationManager(self.store, worker)

    def registration(self) -> RegistrationManager:
        """Who is alive."""
        return RegistrationManager(self.store)

    def cookies(self) -> CookieManager:
        """Who ever was."""
        return CookieManager(self.store)

    def namespaces(self) -> NamespaceManager:
        """Namespaces and the policies of logs."""
        return NamespaceManager(self.store)
