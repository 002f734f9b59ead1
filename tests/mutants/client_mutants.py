"""Bugs of what a client does with ledgers, where the models of `property` do not look."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REPAIR = "tests/unit/ledger/copies/test_replica_repair.py::test_"
MOVE = "tests/unit/ledger/copies/test_replica_move.py::test_"
SERVICE = "tests/unit/repair/test_repair_service.py::test_"
ABSENCE = "tests/unit/repair/test_absence.py::test_"
RECLAIM = "tests/unit/repair/test_reclaimer.py::test_"
REMOVAL = "tests/unit/node/engine/reclaim/test_copy_removal.py::test_"
REBALANCE = "tests/unit/ledger/copies/test_rebalance_plan.py::test_"
RECLAIMING = "bookie/repair/reclaimer.py"
WRITERS = "tests/unit/repair/test_open_ledgers.py::test_"
LOST = "tests/unit/node/test_lost_data.py::test_"
MOVING = "bookie/ledger/copies/replica_move.py"

CLIENT_MUTANTS = (
    Mutant(
        "a repair stores under any incarnation",
        "bookie/ledger/copies/entry_copier.py",
        ".recovery(await self._incarnations.of(target))",
        '.recovery("")',
        (f"{REPAIR}a_bookie_of_another_incarnation_is_given_nothing",),
        "A repair is told as done, and a bookie that is being replaced had its entries.",
    ),
    Mutant(
        "a swap does not check the newcomer's cookie",
        MOVING,
        "await client.ledgers.write(swapped, found.version, conditions)",
        "await client.ledgers.write(swapped, found.version)",
        (f"{MOVE}a_newcomer_may_lose_its_data_in_the_last_moment",),
        "The metadata names a bookie that lost the copies which it had just taken.",
    ),
    Mutant(
        "a swap takes any incarnation of the newcomer",
        MOVING,
        "if cookie is None or cookie.value.incarnation != incarnation:",
        "if cookie is None:",
        (f"{MOVE}a_newcomer_that_lost_its_data_is_not_named",),
        "The metadata names a bookie that lost the copies which it had just taken.",
    ),
    Mutant(
        "a swap overwrites the metadata that it read first",
        MOVING,
        "swapped = with_newcomers(found.value, fragment.first_entry_id, newcomers)",
        "swapped = with_newcomers(metadata, fragment.first_entry_id, newcomers)",
        (f"{MOVE}a_change_of_the_ledger_meanwhile_is_kept",),
        "What another client wrote into the metadata meanwhile is lost.",
    ),
    Mutant(
        "a swap does not look whether the fragment has moved",
        MOVING,
        "if (fragment, last) not in settled_fragments(found.value):",
        "if False:",
        (f"{MOVE}the_second_of_two_movers_changes_nothing",),
        "Two movers undo each other's work, for ever.",
    ),
    Mutant(
        "a swap trusts the copy without the newcomer's listing",
        MOVING,
        "if lacking := await self._lacking(metadata, copier, owed):",
        "if lacking := 0:",
        (f"{MOVE}a_newcomer_without_all_entries_is_not_named",),
        "The metadata names a bookie that lacks entries.",
    ),
    Mutant(
        "the last fragment of an open ledger counts as settled",
        "bookie/ledger/copies/replica_plan.py",
        "        elif following is not None:\n            yield fragment, last\n",
        "        else:\n            yield fragment, last\n",
        (f"{MOVE}the_last_fragment_of_an_open_ledger_stays",),
        "A repair takes a bookie out of a ledger under its writer, which ends.",
    ),
    Mutant(
        "a mark goes although a repair failed",
        "bookie/repair/replicator.py",
        "failed = [one for one in outcomes if not one.is_whole]",
        "failed = [one for one in outcomes if False]",
        (f"{SERVICE}without_a_spare_the_reason_is_recorded",),
        "A ledger without all its copies looks whole.",
    ),
    Mutant(
        "a split of the network counts as many lost bookies",
        "bookie/repair/absence.py",
        "if len(away.intersection(known)) > share_max * len(known):",
        "if False:",
        (f"{ABSENCE}nobody_is_lost_during_a_split",),
        "Half of the cluster copies all that the other half has.",
    ),
    Mutant(
        "a leaving bookie is no source",
        "bookie/ledger/copies/entry_copier.py",
        "return [name for name in dict.fromkeys(others) if name != self.target]",
        "return [name for name in dict.fromkeys(others) if name != self.target][1:]",
        (f"{SERVICE}a_leaving_bookie_serves_as_a_source",),
        "The only copy of a ledger cannot leave its bookie.",
    ),
    Mutant(
        "a bookie does not ask for what it cannot read",
        "bookie/node/integrity_check.py",
        "is_suspect = state.limbo or (bool(self._damage) and ledger_id not in self._read)",
        "is_suspect = state.limbo",
        (f"{SERVICE}entries_that_cannot_be_read_come_back",),
        "Damage stays until a reader meets it.",
    ),
    Mutant(
        "a swap does not need the lock",
        MOVING,
        "conditions = [] if lock is None else [lock.condition]",
        "conditions = []",
        (f"{MOVE}a_mover_that_lost_the_lock_names_nobody",),
        "The metadata names a bookie that removes the copies at the same time.",
    ),
    Mutant(
        "a move trusts what an earlier attempt copied",
        MOVING,
        "(end < done and not await self._lacking(metadata, copier, owed))",
        "end < done",
        (f"{MOVE}a_move_goes_on_with_what_the_newcomer_still_has",),
        "The metadata names a bookie that has removed the copies since.",
    ),
    Mutant(
        "a reclaim does not ask the members of the write sets",
        RECLAIMING,
        "if await self._find_lack(metadata):",
        "if False:",
        (f"{RECLAIM}all_members_have_to_list_all_entries",),
        "The last copies are removed because metadata went back to before a move.",
    ),
    Mutant(
        "a reclaim of an open ledger",
        "bookie/ledger/copies/whole_copies.py",
        "    if not metadata.is_closed:\n        return",
        "    if False:\n        return",
        (f"{RECLAIM}an_open_ledger_keeps_its_copies",),
        "A bookie removes entries of a ledger that a recovery gives back to it.",
    ),
    Mutant(
        "a reclaim without the lock",
        RECLAIMING,
        "if not (await self._may_remove() and await lock.is_held()):",
        "if not await self._may_remove():",
        (f"{RECLAIM}a_lock_that_was_lost_removes_nothing",),
        "A mover names the bookie while it removes the copies.",
    ),
    Mutant(
        "a ledger that lacks copies is locked as one that lacks none",
        "bookie/ledger/copies/marks.py",
        "if is_marked is not None and (mark is not None) != is_marked:",
        "if mark is None and is_marked:",
        (f"{RECLAIM}the_lock_of_another_is_respected",),
        "Copies go while others of the ledger are missing.",
    ),
    Mutant(
        "a reclaim goes on after its session",
        RECLAIMING,
        "lambda: participant.is_certain and participant.session_epoch == epoch,",
        "lambda: True,",
        (f"{RECLAIM}a_session_in_doubt_removes_nothing",),
        "After a pause a bookie removes copies that a mover has just named.",
    ),
    Mutant(
        "a reclaim believes the metadata that it read before the lock",
        RECLAIMING,
        "        if self._is_named(metadata):\n            del",
        "        if False:\n            del",
        (f"{RECLAIM}the_metadata_counts_that_is_read_under_the_lock",),
        "A bookie removes copies that the metadata names.",
    ),
    Mutant(
        "a listing does not wait for a removal",
        "bookie/node/engine/reader.py",
        "        await self._settled(ledger_id)\n",
        "",
        (f"{REMOVAL}a_listing_waits_for_a_removal_under_way",),
        "A mover relies on entries that are on their way out.",
    ),
    Mutant(
        "entries of the journal are removed from the index alone",
        "bookie/node/engine/checkpoint.py",
        "if self.is_dirty(state.ledger_id) or state.deleted or not may_go():",
        "if state.deleted or not may_go():",
        (f"{REMOVAL}a_removal_ends_at_entries_that_the_index_lacks",),
        "The next start brings removed entries back.",
    ),
    Mutant(
        "a rebalance does not look at the difference",
        "bookie/ledger/copies/rebalance_plan.py",
        "if empty >= self._mean or not is_due or size >= full - empty:",
        "if empty >= self._mean or not is_due:",
        (f"{REBALANCE}a_move_makes_the_difference_smaller",),
        "A large ledger wanders from bookie to bookie.",
    ),
    Mutant(
        "a ledger is taken without a look at its writer's record",
        "bookie/repair/open_ledgers.py",
        "ledgers.write(taken, found.version, [absent])",
        "ledgers.write(taken, found.version)",
        (f"{WRITERS}a_writer_may_return_in_the_last_moment",),
        "A writer that lives and has a session loses its ledger.",
    ),
    Mutant(
        "a writer without a record is gone at once",
        "bookie/repair/absence.py",
        "return since is not None and self._looked_at - since >= grace_seconds",
        "return since is not None",
        (
            f"{ABSENCE}a_writer_is_gone_after_the_grace",
            f"{WRITERS}another_auditor_gives_the_whole_grace_again",
        ),
        "A writer that loses its session for a moment loses its ledgers, too.",
    ),
    Mutant(
        "the time in which nobody looked counts for the grace",
        "bookie/repair/absence.py",
        "unseen = max(0.0, now - self._looked_at - self._unseen_max)",
        "unseen = 0.0",
        (f"{ABSENCE}time_in_which_nobody_looked_does_not_count",),
        "A machine that wakes up takes the ledgers of all writers that slept with it.",
    ),
    Mutant(
        "an unclaimed ledger names its creator as the writer",
        "bookie/ledger/ledger_client.py",
        'writer_id="" if UNCLAIMED in custom else await self._writer_id(),',
        "writer_id=await self._writer_id(),",
        ("tests/unit/ledger/write/test_writer_record.py::test_who_reads_or_prepares_writes_none",),
        "A ledger that waits for its writer looks abandoned.",
    ),
    Mutant(
        "lost data is replaced although last copies are among it",
        "bookie/node/identity.py",
        "    if last_copies.count:",
        "    if False:",
        (f"{LOST}the_last_copies_are_not_given_up",),
        "Bookies whose disks are not mounted give up acknowledged entries.",
    ),
    Mutant(
        "two bookies at once trust each other's copies",
        "bookie/ledger/catalog/bookie_losses.py",
        'Put(keys.COOKIES, b"", examined.order)',
        'Put(keys.COOKIES, b"")',
        (f"{LOST}the_changes_themselves_exclude_each_other",),
        "Two bookies that start empty at the same time give up acknowledged entries.",
    ),
)
