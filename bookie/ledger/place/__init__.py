"""Placement chooses the bookies of an ensemble, and newcomers for slots with failed bookies.

Bookies that fail together (one rack, one zone) form a **domain**. An operator names domains with
labels: ``bookie node label b1 region=eu zone=a rack=r7``. A policy names the label that defines the
domains. Bookies with the same value of this label are in one domain, so the names of racks must be
unique in a cluster. The domain of a bookie without the label is unknown, so the bookie adds no
domain to a write set.

The bookies of every **write set** should be in several domains. In an ensemble of E slots, an entry
is stored on Qw (the write quorum size) consecutive slots: the first is ``id % E``, and slot 0
follows the last slot. Placement first maximizes the number of domains in the write set that has the
fewest domains. Then it does the same for the write set with the second fewest domains, and so on.
Among equally good choices, placement chooses at random. Weights make bookies with more free space
more likely.

A slot without a live bookie may be left **vacant** when a ledger is created. A vacant slot counts
as a failed bookie, and a spare bookie may take over the slot.

The functions get the labels, weights and random numbers as arguments, so the same arguments give
the same bookies.

| module | decides |
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
