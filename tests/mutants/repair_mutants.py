"""Bugs of repair that need an order of events; the explorer and the simulation try the orders."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_EXPLORED = "tests/explorer/test_explored_repair.py::test_no_order_breaks_a_rule_of_repair"
LOCKS_LOST = f"{_EXPLORED}[a lost bookie, two replicators, locks are lost]"
SILENCE = f"{_EXPLORED}[a lost bookie, answers do not come]"
LOSS = f"{_EXPLORED}[a loss during a repair]"
WIPED = f"{_EXPLORED}[a wiped bookie, two audits]"
NEWCOMER = f"{_EXPLORED}[a newcomer loses its copies]"
OLD_SELF = f"{_EXPLORED}[an old self takes copies]"
REBALANCE = f"{_EXPLORED}[a rebalance back to a bookie that reclaims]"
STORE_BACK = f"{_EXPLORED}[bookies reclaim, and the store goes back]"
STRIPED = f"{_EXPLORED}[striped, a lost bookie]"
LIMBO = (
    "tests/explorer/test_explorer.py::test_no_order_of_events_breaks_a_rule"
    "[wiped bookie, one recoverer]"
)
WRITER = f"{_EXPLORED}[a writer that changes its ensemble]"
RECOVERY = f"{_EXPLORED}[a recovery that closes]"
COPIER = "bookie/ledger/copies/entry_copier.py"
MOVE = "bookie/ledger/copies/replica_move.py"
MARKS = "bookie/ledger/copies/marks.py"
PLAN = "bookie/ledger/copies/replica_plan.py"

REPAIR_MUTANTS = (
    Mutant(
        "copies are stored by plain adds",
        COPIER,
        "recovery=True)\n        lane = pool.connection(target).recovery(",
        "recovery=False)\n        lane = pool.connection(target).plain(",
        (RECOVERY,),
        "A bookie that was fenced never gets its copies, and one that denied an entry stores it.",
    ),
    Mutant(
        "a swap takes any version of the metadata",
        MOVE,
        "await client.ledgers.write(swapped, found.version, conditions)",
        "now = (await client.ledgers.read(metadata.ledger_id)).version\n"
        "                await client.ledgers.write(swapped, now, conditions)",
        (WRITER, RECOVERY),
        "A change by the writer or by a recovery is undone, and with it acknowledged entries.",
    ),
    Mutant(
        "a swap looks at no incarnation",
        MOVE,
        "                conditions.append(cookies.unchanged(bookie_id, cookie.version))\n",
        "",
        (NEWCOMER,),
        "The metadata names a bookie that was wiped between its listing and the swap.",
    ),
    Mutant(
        "copies may go to another incarnation than the one that is named",
        MOVE,
        "if cookie is None or cookie.value.incarnation != incarnation:",
        "if cookie is None:",
        (OLD_SELF,),
        "The copies went to a process that is being replaced, and the metadata names its bookie.",
    ),
    Mutant(
        "a mark goes before the copies are made",
        "bookie/repair/replicator.py",
        "            found = [] if mark is None else await self._outcomes(mark, gone,",
        "            await marks.mark_replicated(ledger_id, lock)\n"
        "            found = [] if mark is None else await self._outcomes(mark, gone,",
        (WIPED,),
        "A replicator that dies in between leaves a ledger without copies, and nobody knows.",
    ),
    Mutant(
        "a holder that lost its lock swaps",
        MOVE,
        "conditions = [] if lock is None else [lock.condition]",
        "conditions = []",
        (REBALANCE,),
        "The metadata names a bookie that has removed its copies under its own lock since.",
    ),
    Mutant(
        "an absent entry is taken for the end of the copy",
        "bookie/ledger/copies/copy_check.py",
        "                found.missing += stripe_ranges(self._stripe, at, end)\n",
        "                found.missing += []\n",
        (WIPED,),
        "A bookie that lacks entries counts as whole.",
    ),
    Mutant(
        "a bookie in limbo denies",
        "bookie/node/engine/ledger_state.py",
        "return self.limbo or self.reclaimed",
        "return self.reclaimed",
        (LIMBO,),
        "A recovery takes the denials of a bookie that lost its data, and acknowledged entries go.",
    ),
    Mutant(
        "a reclaim counts a member that lacks entries",
        "bookie/ledger/copies/whole_copies.py",
        "if lacking := count_of(difference(owed, stored)):",
        "if lacking := 0:",
        (STORE_BACK,),
        "After the store went back, two bookies remove the copies that each other should have.",
    ),
    Mutant(
        "a mark goes although a reason was added meanwhile",
        MARKS,
        "            Delete(mark, mark_version),\n",
        "            Delete(mark),\n",
        (LOSS,),
        "The loss that a survey found during a repair is forgotten.",
    ),
    Mutant(
        "a member of the ensemble may be chosen as a newcomer",
        "bookie/ledger/place/policy.py",
        "pool = sorted(set(candidates).difference(ensemble))\n        write_quorum_size",
        "pool = sorted(candidates)\n        write_quorum_size",
        (LOCKS_LOST,),
        "One bookie stands in two slots, and the loss of it takes two copies.",
    ),
    Mutant(
        "a bookie that is lost counts as a holder",
        "bookie/repair/auditor.py",
        "return {name for name in names if name in gone or is_vacant(name)}",
        "return {name for name in names if is_vacant(name)}",
        (LOCKS_LOST,),
        "The copies of a lost bookie never come back.",
    ),
    Mutant(
        "a move leaves out the last entry of a fragment",
        PLAN,
        "last = MAX_ID if following is None else following.first_entry_id - 1",
        "last = MAX_ID if following is None else following.first_entry_id - 2",
        (WRITER,),
        "A newcomer lacks an entry that it is named for.",
    ),
    Mutant(
        "a newcomer is named in every fragment",
        PLAN,
        "        if one.first_entry_id == first_entry_id\n",
        "        if first_entry_id >= 0\n",
        (WRITER, RECOVERY),
        "The metadata names a bookie for entries that nobody copied to it.",
    ),
    Mutant(
        "a move copies one stripe of a slot",
        PLAN,
        "    for number in range(stripe.count):\n",
        "    for number in range(1):\n",
        (STRIPED,),
        "A ledger with stripes never gets its copies.",
    ),
    Mutant(
        "a lock whose write was not answered stays",
        "bookie/repair/replicator.py",
        "                await self._worker.marks.give_back_doubtful()\n",
        "                pass\n",
        (
            "tests/unit/repair/test_replicator_rounds.py::"
            "test_a_lock_that_was_not_given_back_in_time_is_given_back_later",
        ),
        "Nobody else repairs, rebalances or reclaims a ledger until a process ends.",
    ),
    Mutant(
        "a survey that finds a loss trusts the mark that is there",
        "bookie/repair/auditor.py",
        "again=is_lacking and ledger_id in locked)",
        "again=False)",
        (LOSS,),
        "A repair that looked before the loss removes the mark.",
    ),
    Mutant(
        "damage among entries of an open ledger is spare",
        "bookie/node/integrity_check.py",
        """\
                if not metadata.is_closed:
                    return False
                if any(""",
        "                if any(",
        (
            "tests/unit/node/test_damage_settles.py::"
            "test_an_open_ledger_keeps_the_finding_until_it_is_closed",
        ),
        "The end of the ledger may be damaged, and the bookie calls itself whole.",
    ),
    Mutant(
        "damage among entries that metadata names is spare",
        "bookie/node/integrity_check.py",
        "if any(one.holds_any(ids) for one in holdings(metadata, self._bookie_id)):",
        "if False:",
        ("tests/unit/node/test_damage_settles.py::test_damage_in_what_was_verified_counts",),
        "A copy is lost, and the bookie calls itself whole.",
    ),
)
