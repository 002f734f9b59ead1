"""Bugs of what a cluster keeps: reads that decide, and go to a server that is behind."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LATE = "tests/conformance/cluster/test_late_servers.py::test_"
NAMESPACES = "tests/conformance/cluster/test_namespaces.py::test_"

CLUSTER_MUTANTS = (
    Mutant(
        "the latest metadata of a ledger is late",
        "bookie/ledger/catalog/ledgers.py",
        "        await self._store.sync()\n        return await self.read(ledger_id, token)",
        "        return await self.read(ledger_id, token)",
        (f"{LATE}the_latest_metadata_of_a_ledger[memory]",),
        "A ledger is recovered with an ensemble that was replaced.",
    ),
    Mutant(
        "the latest cookie of a bookie is late",
        "bookie/cluster/cookies.py",
        "        await self._store.sync()\n        return await self.read(bookie_id)",
        "        return await self.read(bookie_id)",
        (f"{LATE}the_latest_cookie_of_a_bookie[memory]",),
        "A bookie that lost its entries denies some that were acknowledged.",
    ),
    Mutant(
        "the latest head of a partition is late",
        "bookie/log/catalog/logs.py",
        "        await self._store.sync()\n        return await self.read_head(partition, log_id)",
        "        return await self.read_head(partition, log_id)",
        (f"{LATE}an_owner_on_a_late_server_hears_that_it_was_taken_over[memory]",),
        "A former owner recovers and closes ledgers of the next one.",
    ),
    Mutant(
        "a namespace may go while a log is made in it",
        "bookie/log/log_client.py",
        "return [await self.namespaces.condition(namespace)]",
        "return []",
        (f"{NAMESPACES}no_log_is_made_in_a_namespace_that_was_just_deleted[memory]",),
        "A log remains without its namespace, and nobody can read its policy.",
    ),
    Mutant(
        "whether a log is there is asked late",
        "bookie/log/catalog/logs.py",
        "        await self._store.sync()\n        found = await self.find(name)\n        if",
        "        found = await self.find(name)\n        if",
        (f"{LATE}a_roll_on_a_late_server_hears_that_the_log_was_deleted[memory]",),
        "Ledgers of a deleted log are made, and stay.",
    ),
)
