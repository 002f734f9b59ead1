"""Which bookies make an ensemble: the default placement, every subset equally likely.

Chance arrives as an argument, so that a simulation chooses the same bookies for the same seed.
Placement that knows racks and zones takes the same arguments and returns the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from bookie.errors import NotEnoughBookiesError


def choose_ensemble(
    candidates: Collection[str],
    ensemble_size: int,
    *,
    pick: Callable[[int], int],
    excluded: Collection[str] = (),
) -> tuple[str, ...]:
    """Choose `ensemble_size` different bookies, one for each slot.

    Args:
        candidates: ids of the bookies that take new ledgers; their order does not matter.
        ensemble_size: how many to choose.
        pick: ``pick(n)`` returns a number in ``0 … n-1``; called once for each slot.
        excluded: ids that must not be chosen.

    Raises:
        NotEnoughBookiesError: fewer candidates are left than slots.
    """
    # Sorted: the order of a set of strings differs from process to process.
    pool = sorted(set(candidates).difference(excluded))
    if len(pool) < ensemble_size:
        raise NotEnoughBookiesError(
            f"an ensemble of {ensemble_size} is wanted, but there are only {len(pool)} "
            "writable bookies"
        )
    for slot in range(ensemble_size):
        other = slot + pick(len(pool) - slot)
        pool[slot], pool[other] = pool[other], pool[slot]
    return tuple(pool[:ensemble_size])


def choose_newcomers(
    ensemble: Sequence[str],
    slots: Collection[int],
    candidates: Collection[str],
    *,
    pick: Callable[[int], int],
) -> dict[int, str]:
    """Choose a bookie outside the ensemble for each of `slots`; fewer, or none, if there are fewer.

    Args:
        ensemble: the bookies that stand in the slots now.
        slots: the slots to be taken over, in the order of their need.
        candidates: as in `choose_ensemble`.
        pick: as in `choose_ensemble`; called once for each slot that gets a bookie.
    """
    pool = sorted(set(candidates).difference(ensemble))
    chosen: dict[int, str] = {}
    for slot in slots:
        if not pool:
            break
        chosen[slot] = pool.pop(pick(len(pool)))
    return chosen
