"""Bugs of locks, queues of waiting claims, elections, members, caches, and of who asks late."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FAULTS = "tests/conformance/test_lock_faults.py::test_"
LOCKS = "tests/conformance/test_locks.py::test_"
QUEUES = "tests/conformance/test_queues.py::test_"
MEMBERS = "tests/conformance/test_membership.py::test_"
CACHE = "tests/conformance/test_cache.py::test_"

COORDINATION_MUTANTS = (
    Mutant(
        "a claim is checked on a late server",
        "bookie/coordination/lock.py",
        "        await self._store.sync()\n",
        "",
        (f"{FAULTS}a_holder_whose_server_is_late_still_hears_of_its_end",),
        "A holder believes in a lock that another process has.",
    ),
    Mutant(
        "a claim that was made anew is not looked at",
        "bookie/coordination/lock.py",
        """\
                await self._enter()
                if await self._queue.blocker(self._ticket, self._claim.mode) is None:
                    return
""",
        """\
                await self._enter()
                return
""",
        (f"{FAULTS}a_lock_that_is_claimed_anew_is_lost_to_a_faster_one[memory]",),
        "Two processes hold a lock.",
    ),
    Mutant(
        "the clock does not count for a lock",
        "bookie/coordination/lock.py",
        "if self._state is LockState.HELD and not self._participant.is_certain:",
        "if self._state is LockState.HELD and not self._participant.is_certain_by_events:",
        (f"{FAULTS}a_process_that_was_stopped_holds_nothing_for_certain[local]",),
        "A process that was stopped begins something before it hears that its lock is gone.",
    ),
    Mutant(
        "the clock does not count for a leader",
        "bookie/coordination/election.py",
        "if is_known and not self._participant.is_certain:",
        "if is_known and not self._participant.is_certain_by_events:",
        (f"{FAULTS}a_process_that_was_stopped_holds_nothing_for_certain[local]",),
        "A leader that was stopped leads on beside the next one.",
    ),
    Mutant(
        "an update overwrites",
        "bookie/coordination/lock.py",
        "ticket.key, encode_claim(self._claim), version=ticket.version\n",
        "ticket.key, encode_claim(self._claim)\n",
        (f"{LOCKS}the_content_may_change_after_somebody_deleted_the_claim[memory]",),
        "The claim of a lock that was lost comes back without a session, and stays for ever.",
    ),
    Mutant(
        "a lost lock is held",
        "bookie/coordination/lock.py",
        "            self._settle()\n\n    async def _claim_anew",
        "            self._settle()\n            self._turn(LockState.HELD)\n\n"
        "    async def _claim_anew",
        (f"{LOCKS}a_short_outage_makes_a_lock_uncertain_and_nothing_else[memory]",),
        "A lock is held for certain while its session is in doubt.",
        harmless="`state` asks the session itself, by its events and by the clock.",
    ),
    Mutant(
        "a claim waits for the first one",
        "bookie/coordination/wait_queue.py",
        "return names[-1] if names else None",
        "return names[0] if names else None",
        (f"{LOCKS}a_release_wakes_exactly_one_of_fifty[memory]",),
        "A release wakes everybody who waits.",
    ),
    Mutant(
        "a claim of unknown outcome is looked for on a late server",
        "bookie/coordination/wait_queue.py",
        "        if again:\n            await self._store.sync()\n",
        "        if again:\n",
        (f"{FAULTS}a_claim_that_was_not_answered_is_looked_for_on_a_server_that_has_it[memory]",),
        "One attempt makes two claims, of which one blocks others for a while.",
    ),
    Mutant(
        "a claim of a former session counts",
        "bookie/coordination/wait_queue.py",
        "                if record.created_by_self:\n                    return _ticket",
        "                if True:\n                    return _ticket",
        (f"{FAULTS}a_claim_of_the_session_before_is_no_claim[memory]",),
        "A lock ends a moment after it was acquired.",
    ),
    Mutant(
        "a late first attempt stays",
        "bookie/coordination/wait_queue.py",
        "        if ticket.in_doubt:\n            self._sweep_soon(ticket.guid)\n",
        "",
        (f"{FAULTS}a_first_attempt_that_comes_behind_the_lock_goes_too[memory]",),
        "A claim that nobody knows blocks a lock until its process ends.",
    ),
    Mutant(
        "an attempt is behind its own first one",
        "bookie/coordination/wait_queue.py",
        "            if ticket.in_doubt and names:\n",
        "            if False:\n",
        (f"{FAULTS}a_lock_is_not_busy_with_its_own_first_attempt[memory]",),
        "A process is refused by itself.",
    ),
    Mutant(
        "an unreadable claim is shared",
        "bookie/coordination/wait_queue.py",
        "contender.claim is not None and contender.claim.mode is ClaimMode.SHARED",
        "contender.claim is None or contender.claim.mode is ClaimMode.SHARED",
        (
            "tests/conformance/test_read_write_locks.py::"
            "test_a_claim_that_cannot_be_read_keeps_readers_out[memory]",
        ),
        "Readers share a lock with a writer of a newer version.",
    ),
    Mutant(
        "a sweep looks once",
        "bookie/coordination/participant.py",
        "for rest_seconds in (self.store.session_timeout_seconds / LATE_FRACTION, 0.0):",
        "for rest_seconds in (0.0,):",
        (
            f"{FAULTS}a_claim_is_not_behind_its_own_first_attempt[memory]",
            f"{FAULTS}a_first_attempt_that_is_very_late_goes_too[memory]",
        ),
        "A claim that nobody knows blocks a lock until its process ends.",
    ),
    Mutant(
        "what a cancelled caller was given stays",
        "bookie/coordination/participant.py",
        "            if is_given and undo is not None:\n",
        "            if False:\n",
        (f"{FAULTS}who_is_cancelled_as_the_claim_is_made_leaves_none",),
        "A claim that nobody knows blocks a lock until its process ends.",
    ),
    Mutant(
        "a new item of the same name is done",
        "bookie/coordination/queues.py",
        "Delete(self._item.key, self._item.version),",
        "Delete(self._item.key),",
        (f"{QUEUES}who_is_done_too_late_keeps_no_new_item_from_others",),
        "An item is deleted that nobody worked on.",
    ),
    Mutant(
        "an item that is done is claimed",
        "bookie/coordination/queues.py",
        "            Check(item.key, item.version),\n",
        "",
        (f"{QUEUES}an_item_that_is_done_is_not_claimed[memory]",),
        "An item is worked on that is done.",
    ),
    Mutant(
        "a put of a former session is believed",
        "bookie/coordination/queues.py",
        "if in_doubt and epoch == self._participant.session_epoch:",
        "if in_doubt:",
        (f"{QUEUES}a_put_across_two_sessions_is_not_made_twice[memory]",),
        "An item is lost, and its producer was told that it was put.",
    ),
    Mutant(
        "whether an item is there is asked late",
        "bookie/coordination/queues.py",
        "        await self._store.sync()\n        record = await self._store.get(self._item.key)",
        "        record = await self._store.get(self._item.key)",
        (f"{QUEUES}done_is_known_although_a_server_is_late[memory]",),
        "A consumer hears that its item was given back, although it is done.",
    ),
    Mutant(
        "a foreign claim is deleted",
        "bookie/coordination/queues.py",
        "if record is not None and record.value == guid:",
        "if record is not None:",
        (f"{QUEUES}an_item_whose_claim_was_not_answered_and_that_another_took_stays_his[memory]",),
        "Two consumers work on an item at the same time.",
    ),
    Mutant(
        "any record of the name is the member's",
        "bookie/coordination/membership.py",
        "return record.ephemeral and claim is not None and claim.guid == self._claim.guid",
        "return record.ephemeral and claim is not None",
        (f"{MEMBERS}a_name_is_waited_for_and_then_taken[memory]",),
        "Two processes are one member.",
    ),
    Mutant(
        "a record of a former session is kept",
        "bookie/coordination/membership.py",
        "if record is None or record.value != value or not record.created_by_self:",
        "if record is None or record.value != value:",
        (f"{MEMBERS}a_record_of_the_session_before_is_taken_over[memory]",),
        "A member vanishes while its process lives.",
    ),
    Mutant(
        "who did not get in asks a late server",
        "bookie/coordination/membership.py",
        "        if self._in_doubt:\n            await self._store.sync()\n",
        "",
        (f"{MEMBERS}a_member_that_did_not_get_in_goes_also_on_a_late_server[memory]",),
        "A process that is no member is listed until its session ends.",
    ),
    Mutant(
        "a counter overwrites",
        "bookie/coordination/counters.py",
        'b"%d" % (first + count), version=version)',
        'b"%d" % (first + count))',
        ("tests/conformance/test_counters.py::test_numbers_differ_and_grow[memory]",),
        "A number is given twice.",
    ),
    Mutant(
        "who comes again is waited for",
        "bookie/coordination/barriers.py",
        "if now.get(name) == before[name])",
        "if name in now)",
        (
            "tests/conformance/test_barriers.py::"
            "test_who_comes_again_at_once_holds_nobody_up[memory]",
        ),
        "Processes wait at a barrier until they give up.",
    ),
    Mutant(
        "a late answer is cached",
        "bookie/coordination/cache.py",
        "if stat.revision is not None and stat.revision >= write.newest:",
        "if stat.revision is not None:",
        (f"{CACHE}a_late_answer_brings_nothing_older_back[memory-written]",),
        "A cache shows an old value for ever.",
    ),
    Mutant(
        "a load that was overtaken is cached",
        "bookie/coordination/cache.py",
        "        if self._loads.get(key) is load:\n            del self._loads[key]\n"
        "            self._supersede",
        "        if True:\n            self._loads.pop(key, None)\n            self._supersede",
        (f"{CACHE}a_load_that_a_change_overtook_is_not_kept[memory]",),
        "A cache shows an old value for ever.",
    ),
    Mutant(
        "a cache outlives its session",
        "bookie/coordination/cache.py",
        "is SessionEvent.SESSION_REESTABLISHED:\n            self.invalidate_all()",
        "is SessionEvent.SESSION_REESTABLISHED:\n            return",
        (f"{CACHE}everything_is_dropped_with_the_session[memory]",),
        "A cache shows an old value after a long outage.",
    ),
    Mutant(
        "a cached value is shared",
        "bookie/coordination/cache.py",
        "value = modify(self._codec.decode(key, data, found.stat))",
        "value = modify(found.value)",
        (f"{CACHE}values_are_shared_and_updates_work_on_copies[memory]",),
        "A value that was not written is read.",
    ),
    Mutant(
        "a closed candidate leads on",
        "bookie/coordination/election.py",
        "            await lock.release()\n            await lock.give_up()\n",
        "            await lock.give_up()\n",
        (
            "tests/conformance/test_election.py::"
            "test_a_lone_candidate_leads_until_it_resigns[memory]",
            "tests/conformance/test_election.py::"
            "test_closing_the_participant_resigns_everywhere[memory]",
        ),
        "A lock that was given up says that it is held.",
    ),
)
