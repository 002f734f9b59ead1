"""Placement: the bookies of an ensemble, and newcomers for slots whose bookies failed.

Bookies that fail together (one rack, one zone) form a **domain**. An operator names domains with
labels: ``bookie node label b1 region=eu zone=a rack=r7``. A policy says which of them counts. Two
bookies with one label value stand in one domain, so the names of racks are unique in a cluster. A
bookie without the label may stand in any domain, so it adds no domain to a span.

Every **write set** must span domains; the ensemble as a whole need not. An entry lives on the Qw
slots from ``id % E`` on. A choice makes the write set with the fewest domains span as many as
possible, then the next one, and so on. Among choices that are equally good, chance decides, and
free space if bookies have weights.

A slot for which there is no live bookie may be left **vacant** when a ledger is created. It counts
as a failed bookie, and a spare may take it over.

Topology, weights and chance arrive as arguments: the same arguments give the same bookies.

| module | what it decides |
|---|---|
| `policy` | ensembles, newcomers, vacant slots, domains of acknowledgements |
| `spread` | the domain of each slot |

Source: the placement policies of Apache BookKeeper (rack-, region- and zone-aware).
"""

from bookie.ledger.place.policy import (
    ANYWHERE,
    AckDomains,
    Placement,
    PlacementPolicy,
    vacant_slots,
    weights_by_free_space,
)

__all__ = [
    "ANYWHERE",
    "AckDomains",
    "Placement",
    "PlacementPolicy",
    "vacant_slots",
    "weights_by_free_space",
]
