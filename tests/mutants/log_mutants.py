"""Bugs of logs: owners, publishers, readers, consumers, and what deletes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOG = "tests/unit/log/test_log_"
COMPACT = "tests/unit/log/compact/test_log_"
PUBLISH = "tests/unit/log/publish/test_log_"
READ = "tests/unit/log/read/test_log_"
TIDY = "tests/unit/log/tidy/test_log_"
WRITE = "tests/unit/log/write/test_log_"
CONSUMER = "tests/conformance/log/test_consumer.py::test_"
CURSORS = "tests/conformance/log/test_cursors.py::test_"
GROUP = "tests/conformance/log/test_group.py::test_"
STORY = f"{LOG}mutants.py::test_a_right_log_passes"

OWNERS = (
    Mutant(
        "mended producers are not forgotten",
        "bookie/log/write/partition_writer.py",
        """\
            if one.entries.payloads and one.next_producer is not None:
                self._encoder.windows.forget(one.next_producer)
""",
        "",
        (f"{WRITE}owner_steps.py::test_a_snapshot_names_no_record_that_was_lost",),
        "A record that never arrived is answered as a duplicate: it is lost.",
    ),
    Mutant(
        "a roll does not wait",
        "bookie/log/write/partition_writer.py",
        """\
        try:
            await self._all_confirmed()
        except BookieError:
            await self._mend()
            self._rolled()
            return
        self._retired = old
""",
        "        self._retired = old\n",
        (f"{WRITE}owner_steps.py::test_a_crash_in_a_roll_leaves_no_gap",),
        "After a crash acknowledged records have other offsets, and stand before earlier ones.",
    ),
    Mutant(
        "a takeover adds a ledger that was swept",
        "bookie/log/write/takeover.py",
        "            check=lambda: self._client.ledgers.ledgers.read(writer.ledger_id),\n",
        "",
        (f"{WRITE}owner_steps.py::test_a_ledger_that_a_sweep_took_is_in_no_chain",),
        "The log names a ledger that is gone; nobody opens or reads it any more.",
    ),
    Mutant(
        "a roll adds a ledger that was swept",
        "bookie/log/write/partition_writer.py",
        "                check=lambda: self._client.ledgers.ledgers.read(created.ledger_id),\n",
        "",
        (f"{WRITE}writer.py::test_a_next_ledger_that_a_sweep_took_is_made_again",),
        "The log names a ledger that is gone; nobody opens or reads it any more.",
    ),
    Mutant(
        "a ledger is added twice",
        "bookie/log/head/head_keeper.py",
        "return head if is_there else with_ledger(head, ledger_id)",
        "return with_ledger(head, ledger_id)",
        (f"{WRITE}writer_store.py::test_a_lost_reply_and_a_truncation",),
        "Readers get its records twice.",
    ),
    Mutant(
        "a former owner goes on",
        "bookie/log/head/head_keeper.py",
        "if found.value.epoch != self.head.epoch:",
        "if found.value.epoch < self.head.epoch:",
        (f"{WRITE}writer.py::test_the_former_owner_hears_who_and_when",),
        "Two owners change one chain.",
    ),
    Mutant(
        "another's change is taken for the own one",
        "bookie/log/head/head_keeper.py",
        "if found.value == head:",
        "if found.value.epoch == head.epoch:",
        (
            f"{TIDY}truncation.py::test_an_owner_goes_on_after_a_truncation",
            f"{WRITE}writer_store.py::test_a_lost_reply_and_a_truncation",
        ),
        "A ledger takes records, and no head names it.",
    ),
    Mutant(
        "another's claim is taken for the own one",
        "bookie/log/write/takeover.py",
        "if latest.value != claimed:",
        "if latest.value.owner is None or latest.value.owner.name != name:",
        (
            f"{WRITE}writer_store.py::test_two_claims_of_one_name_in_one_millisecond_have_one_winner",
        ),
        "Two processes of one name own a log at once.",
    ),
    Mutant(
        "a takeover fences the last ledger only",
        "bookie/log/write/takeover.py",
        "ends = [await self._close(one) for one in before.open_ranges]",
        "ends = [await self._close(one) for one in before.open_ranges[-1:]]",
        (f"{STORY}[both_open_ledgers_are_closed]",),
        "The former owner's appends are acknowledged behind records of the new one.",
    ),
    Mutant(
        "a takeover counts offsets of producers wrongly",
        "bookie/log/write/takeover.py",
        "            base += end.last_entry_id + 1\n",
        "            base += end.last_entry_id\n",
        (f"{WRITE}owner_steps.py::test_a_crash_in_a_roll_keeps_the_offsets_of_producers",),
        "A duplicate gets the position of another record.",
    ),
    Mutant(
        "the last written record of a call is appended again",
        "bookie/log/write/unconfirmed.py",
        "last_entry_id - self.first_entry_id + 1",
        "last_entry_id - self.first_entry_id",
        (f"{STORY}[what_was_written_is_not_appended_again]",),
        "Readers get a record twice.",
    ),
    Mutant(
        "the rest of a producer's call has its first number",
        "bookie/log/write/unconfirmed.py",
        "sequence + sum(run.entries for run in self.runs)",
        "sequence",
        (f"{WRITE}owner_steps.py::test_a_producers_call_that_was_cut_keeps_its_numbers",),
        "A duplicate gets the position of another record.",
    ),
    Mutant(
        "a duplicate does not wait",
        "bookie/log/write/idempotence.py",
        """\
        if before:
            await asyncio.wait(before)
""",
        "",
        (f"{STORY}[a_duplicate_waits_for_the_first]",),
        "A record is acknowledged before it is durable.",
    ),
    Mutant(
        "a duplicate gets the position that its first append had before it moved",
        "bookie/log/write/idempotence.py",
        "at = moved.get(sequence, position)",
        "at = position",
        (f"{WRITE}writer.py::test_a_duplicate_whose_producer_is_forgotten_meanwhile",),
        "A position of a record names another entry, or none.",
    ),
    Mutant(
        "the next ledger has no snapshot",
        "bookie/log/record/record_encoder.py",
        "        self._entries_since_snapshot = SNAPSHOT_ENTRIES\n        self.latest.compared()",
        "        self.latest.compared()",
        (f"{WRITE}writer.py::test_a_duplicate_gets_the_first_position",),
        "After a takeover a duplicate is appended again.",
    ),
    Mutant(
        "a new owner reads back too little",
        "bookie/log/write/ledger_end.py",
        "if not follows_control(found[0][1]) or any(is_control(one) for _, one in found):",
        "if len(behind) > 1 or not follows_control(found[0][1]):",
        (f"{WRITE}writer.py::test_a_snapshot_spares_reading_everything",),
        "After a takeover a duplicate is appended again.",
    ),
    Mutant(
        "the quota forgets the present ledger",
        "bookie/log/write/partition_writer.py",
        "self._chain_bytes + self._segment.size_bytes >= quota",
        "self._chain_bytes >= quota",
        (f"{WRITE}writer.py::test_a_full_log_refuses",),
        "A log that never rolls grows for ever.",
    ),
    Mutant(
        "a closed log keeps its last range open",
        "bookie/log/write/partition_writer.py",
        """\
        segment = self._segment
        await self._patiently(lambda: self._close_range(segment))
        await self._keeper.change(given_up)
""",
        "        await self._keeper.change(given_up)\n",
        (f"{WRITE}writer.py::test_a_roll_by_size",),
        "Retention and truncation never reach the end of a log that was closed.",
    ),
)

PUBLISHERS = (
    Mutant(
        "a batch is published twice",
        "bookie/log/publish/publisher.py",
        "if batch <= look.last.value:",
        "if batch < look.last.value:",
        (f"{PUBLISH}publisher.py::test_a_batch_is_published_whole_and_once",),
        "A batch that a driver repeats after a crash is there twice.",
    ),
    Mutant(
        "a batch goes into a log that was deleted",
        "bookie/log/publish/publisher.py",
        "commit_heads(changes, [put, look.condition])",
        "commit_heads(changes, [put])",
        (f"{PUBLISH}publisher.py::test_a_log_deleted_at_the_last_moment_gets_no_batch",),
        "Records are acknowledged, and the log is gone.",
    ),
    Mutant(
        "any batch of this number is ours",
        "bookie/log/publish/publisher.py",
        "if any((one.ledger_id, one.first_entry_id) in named for one in ranges):",
        "if named:",
        (f"{PUBLISH}publisher.py::test_a_batch_that_another_driver_published_is_not_ours",),
        "A driver believes that it has published what another one did.",
    ),
    Mutant(
        "a truncated batch is not ours",
        "bookie/log/publish/publisher.py",
        "if now.start_offset < end and not await self._has_copy(later):",
        "if not await self._has_copy(later):",
        (
            f"{PUBLISH}publisher.py::test_a_lost_reply_is_recognised_although_the_records_were_truncated",
        ),
        "A driver believes that another one has published what it published itself.",
    ),
    Mutant(
        "a compacted batch is not ours",
        "bookie/log/publish/publisher.py",
        "if now.start_offset < end and not await self._has_copy(later):",
        "if now.start_offset < end:",
        (
            f"{PUBLISH}publisher.py::test_a_lost_reply_is_recognised_although_a_compaction_joined_the_records",
        ),
        "A driver believes that another one has published what it published itself.",
    ),
    Mutant(
        "a truncation before it hides a batch",
        "bookie/log/publish/publisher.py",
        "if now.start_offset < end and not await self._has_copy(later):",
        "if now.start_offset <= begin and not await self._has_copy(later):",
        (f"{PUBLISH}publisher.py::test_a_dropped_batch_that_is_still_readable_is_not_ours",),
        "A driver believes that it has published what another one did.",
    ),
    Mutant(
        "a lost compare-and-set is taken for a doubt",
        "bookie/log/publish/publisher.py",
        """\
                if not attempts.is_in_doubt:
                    first_look = None
""",
        "",
        (f"{PUBLISH}publisher.py::test_a_lost_compare_and_set_is_made_on_the_new_head",),
        "Two drivers of one query both say that they published a batch.",
        harmless="They have the same ranges then, and an abort deletes nothing that is named.",
    ),
    Mutant(
        "what is published is not looked at anew",
        "bookie/log/publish/publisher.py",
        """\
        await self._client.store.sync()
        definition = await logs.read(self._name)
""",
        "        definition = await logs.read(self._name)\n",
        (f"{PUBLISH}publisher.py::test_a_driver_on_a_late_server_sees_what_was_done",),
        "A driver whose server is late fails on a log that was just made.",
    ),
    Mutant(
        "the last batch is read late",
        "bookie/log/publish/publisher.py",
        """\
        await self._client.store.sync()
        return (await self._client.logs.last_batch""",
        """\
        return (await self._client.logs.last_batch""",
        (f"{PUBLISH}publisher.py::test_a_driver_on_a_late_server_sees_what_was_done",),
        "A migration goes on from an older batch.",
    ),
    Mutant(
        "foreign ledgers are published",
        "bookie/log/publish/publisher.py",
        "    if not _has_tags(tags, ledger):\n",
        "    if not ledger.custom_metadata:\n",
        (f"{PUBLISH}publisher.py::test_a_batch_with_a_wrong_range_is_refused_whole",),
        "A log shows the records of another one.",
    ),
    Mutant(
        "named ledgers are deleted",
        "bookie/log/tidy/unnamed_ledgers.py",
        "[state for one, state in sorted(going.items()) if one not in named]",
        "[state for one, state in sorted(going.items())]",
        (f"{PUBLISH}publisher.py::test_abort_deletes_only_what_nobody_published",),
        "An abort deletes what readers see.",
    ),
    Mutant(
        "a truncation deletes what is still to be published",
        "bookie/log/tidy/unnamed_ledgers.py",
        "return ledger.is_closed and ledger.last_entry_id <= ends[ledger.ledger_id]",
        "return ledger.last_entry_id <= ends[ledger.ledger_id]",
        (f"{TIDY}truncation.py::test_a_ledger_that_its_publisher_may_go_on_with_stays",),
        "The next batch of a query fails.",
    ),
    Mutant(
        "a range is cut before it is durable",
        "bookie/log/publish/range_writer.py",
        "        if current.under_way:\n",
        "        if False:\n",
        (f"{PUBLISH}range_writer.py::test_appends_at_the_same_time_and_a_cut",),
        "A batch lacks records, or names some that are not there.",
    ),
    Mutant(
        "a range begins in a ledger that was deleted",
        "bookie/log/publish/range_writer.py",
        """\
        except NoSuchLedgerError:
            return True
        return found.value.state is not LedgerState.OPEN
""",
        """\
        except NoSuchLedgerError:
            return False
        return found.value.state is not LedgerState.OPEN
""",
        (f"{PUBLISH}range_writer.py::test_an_aborted_ledger_is_replaced",),
        "Every later batch of a task is refused.",
    ),
    Mutant(
        "copies keep the times of one publisher",
        "bookie/log/compact/compaction.py",
        "            payload = with_greatest(entry.payload, greatest_ms)\n",
        "            payload = entry.payload\n",
        (f"{COMPACT}compaction.py::test_times_are_found_that_go_back_between_publishers",),
        "After a compaction, reading from a time leaves records out.",
    ),
)

DELETIONS = (
    Mutant(
        "the own clock deletes",
        "bookie/log/tidy/truncation.py",
        "await client.clocks.deletion_ms() if policy.retention_seconds else 0",
        "client.clock.now_ms()",
        (
            f"{LOG}clocks.py::test_too_few_bookies_delete_nothing_by_time",
            f"{LOG}clocks.py::test_a_sweep_on_a_machine_that_is_ahead_deletes_nothing_young",
        ),
        "A machine whose clock is ahead deletes records that are a minute old.",
    ),
    Mutant(
        "the latest clock deletes",
        "bookie/log/clock_check.py",
        "return int(min(own, earliest))",
        "return int(max(own, earliest))",
        (f"{LOG}clocks.py::test_the_earliest_clock_deletes",),
        "A machine whose clock is ahead deletes records that are a minute old.",
    ),
    Mutant(
        "a sweep takes young ledgers",
        "bookie/log/tidy/sweep.py",
        "return 0 <= ledger.ctime_ms <= self._before_ms",
        "return ledger.ctime_ms <= self._before_ms or ledger.ctime_ms < 0",
        (f"{TIDY}sweep.py::test_ledgers_of_nobody_and_of_unknown_age_stay",),
        "A sweep takes the ledgers of a publisher that is at work.",
    ),
    Mutant(
        "a sweep goes by names",
        "bookie/log/tidy/sweep.py",
        "if found is None or found.value.log_id != tags.log_id:",
        "if found is None:",
        (f"{TIDY}sweep.py::test_a_log_made_anew_does_not_keep_ledgers_of_the_former_one",),
        "The ledgers of a log that was made anew stay for ever.",
    ),
    Mutant(
        "chunks go that an attempt had in mind",
        "bookie/log/tidy/truncation.py",
        "{chunk.number for chunk in chunks if chunk.number < head.first_chunk}",
        "{chunk.number for chunk in chunks}",
        (f"{TIDY}truncation.py::test_a_bound_that_is_lower_at_the_second_attempt_keeps_chunks",),
        "The head names a chunk that is gone: nobody reads that part of the log.",
    ),
    Mutant(
        "a chunk goes with an entry that stays",
        "bookie/log/tidy/truncation.py",
        "        if end > offset:\n            break\n",
        "        if end > offset + 1:\n            break\n",
        (f"{TIDY}truncation.py::test_chunks_go_when_all_of_them_is_gone",),
        "A truncation takes a record more than was wanted.",
    ),
    Mutant(
        "a deletion looks once",
        "bookie/log/tidy/deletion.py",
        "        version = found.version\n        for one in found.value.open_ranges:",
        "        version = found.version\n        if not found.value.open_ranges:\n"
        "            return\n        for one in found.value.open_ranges:",
        (f"{TIDY}sweep.py::test_a_deleted_log_leaves_nothing",),
        "Ledgers of deleted logs stay for ever.",
    ),
    Mutant(
        "an owner appends into nothing",
        "bookie/log/tidy/deletion.py",
        "            await _end_writer(client, one.ledger_id)\n",
        "            pass\n",
        (f"{LOG}deleted.py::test_an_owner_appends_nothing_into_nothing",),
        "Appends to a log that was deleted are acknowledged.",
    ),
)

READERS = (
    Mutant(
        "what was truncated is passed over",
        "bookie/log/read/reader.py",
        "if isinstance(self._target, AtEntry) or not (self._skips or self._is_floating):",
        "if isinstance(self._target, AtEntry):",
        (f"{READ}reader.py::test_truncation_at_the_position",),
        "A reader misses records and is not told.",
    ),
    Mutant(
        "a reader goes past its end",
        "bookie/log/read/reader.py",
        "entries = entries[: end - offset]",
        "entries = entries[: end - offset + 1]",
        (f"{READ}reader.py::test_an_end_while_following",),
        "A job reads a record that belongs to the next one.",
    ),
    Mutant(
        "records of the time itself are left out",
        "bookie/log/read/reader.py",
        "lambda record: record.timestamp_ms < oldest",
        "lambda record: record.timestamp_ms <= oldest",
        (f"{READ}start_position.py::test_late_records",),
        "Reading from a time leaves records out.",
    ),
    Mutant(
        "the rest of a batch comes after a seek",
        "bookie/log/read/reader.py",
        "                    if self._seeks != seeks:\n                        break\n",
        "",
        (f"{READ}reader.py::test_seek_back_and_forth",),
        "A reader gives out records from before it was moved.",
    ),
    Mutant(
        "an open ledger's end is where it is confirmed",
        "bookie/log/read/reader.py",
        "        if handle.is_closed:\n            self._ranges.note_end",
        "        if True:\n            self._ranges.note_end",
        (f"{STORY}[an_open_ledger_holds_readers_back]",),
        "A reader counts wrong offsets, and misses records.",
    ),
    Mutant(
        "halving for a time goes too far",
        "bookie/log/read/start_position.py",
        "        if await _greatest_ms(handle, middle) < timestamp_ms:",
        "        if await _greatest_ms(handle, middle) <= timestamp_ms:",
        (f"{READ}start_position.py::test_late_records",),
        "Reading from a time leaves records out.",
    ),
)

CONSUMERS = (
    Mutant(
        "records are given out under another claim",
        "bookie/log/consume/partition_consumer.py",
        "if not (self._lock.is_held and self._lock.token == self._checked):",
        "if not self._lock.is_held:",
        (f"{CONSUMER}nothing_is_given_out_under_another_claim_before_the_cursor_was_looked_at",),
        "Two consumers are given the same records, and one cannot commit them.",
    ),
    Mutant(
        "the rest of a batch is given out in doubt",
        "bookie/log/consume/consumer.py",
        "not (consumer.may_give or consumer.is_over)",
        "False",
        (
            f"{CONSUMER}the_rest_of_a_batch_waits_while_the_session_is_in_doubt",
            f"{CONSUMER}nothing_is_given_out_under_another_claim_before_the_cursor_was_looked_at",
        ),
        "Two consumers are given the same records, and one cannot commit them.",
    ),
    Mutant(
        "any holder may commit",
        "bookie/log/consume/commit.py",
        "if (found.value.epoch, found.value.owner) != (self._epoch, self._owner):",
        "if found.value.epoch < self._epoch:",
        (f"{CONSUMER}a_stopped_consumer_cannot_move_the_cursor_back[memory]",),
        "A consumer that was replaced moves the cursor: records are left out, or come again.",
    ),
    Mutant(
        "a cursor goes back",
        "bookie/log/consume/commit.py",
        "            while offset > self.committed:",
        "            while offset != self.committed:",
        (f"{STORY}[a_cursor_does_not_go_back]",),
        "Records that were committed come again.",
    ),
    Mutant(
        "a commit that was not answered is believed",
        "bookie/log/consume/cursors.py",
        "                    if found.version != version:\n                        return found\n",
        "                    return found\n",
        (f"{CURSORS}a_late_commit_cannot_undo_a_later_one[memory]",),
        "A late request undoes a later commit.",
    ),
    Mutant(
        "a position counts in every partition",
        "bookie/log/read/start_position.py",
        "    if partition not in (None, place.partition):",
        "    if False:",
        (
            f"{READ}partitions_reader.py::test_a_position_moves_the_reader_of_its_partition",
            f"{CURSORS}no_cursor_begins_at_the_offset_of_another_partition[memory]",
        ),
        "Records of another partition are read, left out or deleted.",
    ),
    Mutant(
        "a cursor made anew begins its tokens anew",
        "bookie/log/consume/cursors.py",
        "max(1, revision)",
        "1",
        (f"{CURSORS}a_cursor_that_is_made_anew_goes_on_with_its_tokens[memory-a consumer]",),
        "A fencing token is used twice.",
    ),
    Mutant(
        "a cursor is read late",
        "bookie/log/consume/cursors.py",
        "            await self._client.store.sync()\n",
        "",
        (f"{CURSORS}a_holder_on_a_late_server_hears_that_it_lost_its_cursor[memory]",),
        "A consumer goes on although another one has its cursor.",
    ),
    Mutant(
        "a late check undoes a newer one",
        "bookie/log/consume/partition_consumer.py",
        "self._checked = max(self._checked, token)",
        "self._checked = token",
        (f"{CONSUMER}a_late_check_does_not_undo_a_newer_one[memory]",),
        "A consumer stands still for ever.",
    ),
    Mutant(
        "reading begins again where it began",
        "bookie/log/consume/partition_consumer.py",
        "                        offset = batch[-1].offset + 1\n",
        "",
        (f"{CONSUMER}reading_goes_on_after_a_failure_that_passes[memory]",),
        "Records come twice to one consumer.",
    ),
    Mutant(
        "the record in hand is committed",
        "bookie/log/consume/consumer.py",
        "                await consumer.commit_finished()\n        finally:\n"
        "            await consumer.close()",
        "                await consumer.commit_finished()\n"
        "                await consumer.commit(consumer.position)\n        finally:\n"
        "            await consumer.close()",
        (f"{CONSUMER}automatic_commits_are_of_what_is_finished[memory]",),
        "A crash loses the record that the application works on.",
    ),
    Mutant(
        "a member commits under a former token",
        "bookie/log/consume/group.py",
        "if consumer is None or consumer.cursor.token != up_to.token:",
        "if consumer is None:",
        (f"{GROUP}a_reset_of_a_groups_cursor_is_followed[memory]",),
        "After a reset, the commit of an old record passes over new ones.",
    ),
    Mutant(
        "a partition moves with a record in hand",
        "bookie/log/consume/group.py",
        "while self._flow.in_hand is consumer and not (consumer.error or self._is_leaving):",
        "while False:",
        (f"{GROUP}a_partition_moves_when_its_last_record_is_handed_back[memory]",),
        "Two members work on one record.",
    ),
    Mutant(
        "a former leader writes",
        "bookie/log/consume/group_leader.py",
        "write_assignment(assignment, found.version, [condition])",
        "write_assignment(assignment, found.version, [])",
        (f"{GROUP}a_leader_writes_only_while_its_claim_stands[memory]",),
        "Partitions move to members that are gone.",
    ),
    Mutant(
        "a lost cursor ends a member",
        "bookie/log/consume/group.py",
        "elif not isinstance(consumer.error, CursorLostError | None):",
        "elif consumer.error is not None:",
        (f"{GROUP}a_reset_of_a_groups_cursor_is_followed[memory]",),
        "A reset of one partition ends the member's whole loop.",
    ),
)

LOG_MUTANTS = (*OWNERS, *PUBLISHERS, *DELETIONS, *READERS, *CONSUMERS)
