"""Bugs between threads: what a caller was given, timeouts, forks, and reading ahead."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOGS = "tests/unit/sync/test_sync_logs.py::test_"
ITERATORS = "tests/unit/sync/test_sync_iterators.py::test_"
HANDLES = "tests/unit/sync/test_sync_handles.py::test_"

SYNC_MUTANTS = (
    Mutant(
        "a commit covers what was fetched",
        "bookie/sync/consumers.py",
        "wanted = self.position if up_to is None else up_to",
        "wanted = up_to",
        (f"{LOGS}a_commit_covers_what_the_caller_was_given",),
        "A crash loses records that the caller never saw.",
    ),
    Mutant(
        "a member commits its last batch only",
        "bookie/sync/consumers.py",
        "self._uncommitted[last.log_partition] = self._noted = last",
        "self._uncommitted = {last.log_partition: last}\n            self._noted = last",
        (f"{LOGS}a_lost_partition_does_not_keep_others_from_being_committed",),
        "Records of other partitions come again after each restart.",
    ),
    Mutant(
        "a partition that moved after its last commit counts as lost",
        "bookie/sync/consumers.py",
        "if not self._handle.has_committed(record):",
        "if True:",
        (f"{LOGS}a_partition_that_left_when_all_was_committed_is_no_loss",),
        "A member does its work again although all of it was committed.",
    ),
    Mutant(
        "one lost partition keeps others from being committed",
        "bookie/sync/consumers.py",
        "            except CursorLostError as error:\n",
        "            except CursorLostError as error:\n                raise\n",
        (f"{LOGS}a_lost_partition_does_not_keep_others_from_being_committed",),
        "After a reset of one partition a member never commits anything.",
    ),
    Mutant(
        "a batch that came with the timeout is dropped",
        "bookie/sync/consumers.py",
        "        if not self._arrived:\n            self._arrived = (",
        "        if True:\n            self._arrived = (",
        (f"{LOGS}a_batch_that_comes_with_the_timeout_is_not_lost",),
        "Records are given to nobody, and committed by the next one.",
    ),
    Mutant(
        "the lag of a consumer forgets the rest",
        "bookie/sync/consumers.py",
        "self._run(self._handle.lag(), timeout) + len(self._given.rest)",
        "self._run(self._handle.lag(), timeout)",
        (f"{LOGS}a_commit_covers_what_the_caller_was_given",),
        "A lag is too small.",
    ),
    Mutant(
        "the lag of a reader forgets what was read ahead",
        "bookie/sync/log_reader.py",
        "return behind_read_ahead + sum(map(len, waiting)) + len(self._given.rest)",
        "return behind_read_ahead + len(self._given.rest)",
        (f"{LOGS}the_lag_of_a_reader_counts_what_was_read_ahead",),
        "A lag is too small.",
    ),
    Mutant(
        "a seek passes over what was read ahead",
        "bookie/sync/log_reader.py",
        "firsts.setdefault(record.partition, record.offset)",
        "firsts[record.partition] = record.offset",
        (f"{LOGS}seeking_in_one_partition_leaves_what_was_read_ahead_of_others",),
        "A reader misses records of partitions that were not sought.",
    ),
    Mutant(
        "a loop does not go on after an error",
        "bookie/sync/log_reader.py",
        "            if batches.is_spent:\n                self._batches = None\n",
        "            pass\n",
        (f"{LOGS}a_reader_goes_on_after_an_error",),
        "A reader stands still after an error that passes.",
    ),
    Mutant(
        "dropped records count as given",
        "bookie/sync/given_records.py",
        "        self._last = self.last\n        self._batch = ()\n",
        "        self._last = self._batch[-1] if self._batch else self._last\n"
        "        self._batch = ()\n",
        (f"{LOGS}dropped_records_do_not_count_as_given",),
        "A commit covers records that the caller never saw.",
    ),
    Mutant(
        "an error of a call is taken for its timeout",
        "bookie/sync/loop_thread.py",
        "            if future.cancel():\n                raise late(timeout) from None\n"
        "            return future.result()",
        "            raise late(timeout) from None",
        (f"{ITERATORS}the_error_of_a_call_is_not_taken_for_its_timeout",),
        "A caller believes that the outcome is unknown.",
    ),
    Mutant(
        "a call that was given up goes on",
        "bookie/sync/loop_thread.py",
        "        except BaseException:\n            future.cancel()\n            raise\n\n"
        "    def end(self)",
        "        except BaseException:\n            raise\n\n    def end(self)",
        (f"{ITERATORS}ctrl_c_in_a_waiting_call_cancels_it",),
        "What was interrupted goes on in the background.",
    ),
    Mutant(
        "a child uses its parent's client",
        "bookie/sync/loop_thread.py",
        "        if self.pid != os.getpid():\n",
        "        if False:\n",
        ("tests/unit/sync/test_sync_forks.py",),
        "A forked process hangs.",
    ),
    Mutant(
        "gRPC is used after a fork",
        "bookie/env/forks.py",
        "self._is_broken |= self._was_used",
        "self._is_broken = False",
        ("tests/unit/sync/test_sync_forks.py",),
        "A forked process crashes or hangs.",
    ),
    Mutant(
        "reading ahead has no bound",
        "bookie/sync/iterator.py",
        "            if len(self._items) < self._ahead:\n                continue\n",
        "            continue\n",
        (f"{ITERATORS}reading_ahead_is_bounded",),
        "A slow caller's process runs out of memory.",
    ),
    Mutant(
        "the last items are lost with the end",
        "bookie/sync/iterator.py",
        "            if self._items:\n                return\n            error, self._error",
        "            error, self._error",
        (f"{ITERATORS}items_that_come_just_before_the_end_are_not_lost",),
        "A read ends before its last entries.",
    ),
    Mutant(
        "an item that comes before the wait is missed",
        "bookie/sync/iterator.py",
        "if not (self._items or self._ended.is_set() or self._ready.wait(self.timeout)):",
        "if not self._ready.wait(self.timeout):",
        (f"{ITERATORS}an_item_that_comes_just_before_the_wait_is_seen",),
        "A read stands still.",
    ),
    Mutant(
        "a dropped iterator reads on",
        "bookie/sync/iterator.py",
        "        if pump is not None:\n            pump.cancel()\n\n    def __next__",
        "        del pump\n\n    def __next__",
        (f"{ITERATORS}dropping_cancels_the_generator",),
        "Tails that nobody reads stay in the loop.",
    ),
)
