"""Placement: choose the bookies of an ensemble, and newcomers for slots whose bookies failed.

Bookies that fail together (one rack, one zone) form a **domain**. An operator names domains with
labels: ``bookie node label b1 region=eu zone=a rack=r7``. A policy says which label makes the
domains. Two bookies with the same value of this label stand in one domain, so the names of racks
must be unique in a cluster. A bookie without the label may stand in any domain, so it adds no
domain to those of a write set.

The bookies of every **write set** should stand in several domains; the ensemble as a whole need
not. An entry is stored on the Qw slots from ``id % E`` on. A choice of bookies gives the write set
with the fewest domains as many domains as possible, then the write set with the next fewest, and so
on. Among equally good choices, chance decides, weighted by free space if bookies have weights.

A slot for which there is no live bookie may be left **vacant** when a ledger is created. A vacant
slot counts as a failed bookie, and a spare bookie may take it over.

Topology, weights and random numbers are arguments of the functions, so the same arguments give the
same bookies.

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
