"""Bugs of the source and the sink of Spark: what is committed, where a batch ends, what is lost."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

UNIT = "tests/spark/unit/test_spark_"
TASK = f"{UNIT}sink_task.py::test_"
PUBLISHING = f"{UNIT}sink_publishing.py::test_"
READER = f"{UNIT}stream_batches.py::test_"

SPARK_MUTANTS = (
    Mutant(
        "one task's ranges are published",
        "bookie/spark/sink_publishing.py",
        "found.setdefault((log, message.application), []).extend(ranges)",
        "found[log, message.application] = ranges",
        (f"{PUBLISHING}a_batch_of_many_tasks_is_published_whole_and_once",),
        "Rows of all tasks but one are lost.",
    ),
    Mutant(
        "a batch that came again keeps its ledgers",
        "bookie/spark/sink_publishing.py",
        "        with suppress(BookieError):  # a sweep deletes the ledgers later\n"
        "            publisher.abort(ranges)\n",
        "",
        (f"{PUBLISHING}a_batch_of_many_tasks_is_published_whole_and_once",),
        "Each repeated batch leaves its ledgers for a day.",
    ),
    Mutant(
        "a failed log ends an abort",
        "bookie/spark/sink_publishing.py",
        '        except BookieError as error:\n            _log.warning("spark_batch_not_aborted"',
        '        except KeyError as error:\n            _log.warning("spark_batch_not_aborted"',
        (f"{PUBLISHING}an_abort_leaves_what_is_published_and_goes_on_after_a_failure",),
        "The error of an abort hides that of the batch, and other logs keep their ledgers.",
    ),
    Mutant(
        "a write that happens once is forgotten",
        "bookie/spark/sinks.py",
        "        if self.settings.application is None:  #",
        "        if True:  #",
        (f"{PUBLISHING}a_write_with_an_application_happens_once",),
        "A job that runs again writes its rows twice.",
    ),
    Mutant(
        "every write has version 0",
        "bookie/spark/sinks.py",
        "publish_batch(self.settings, self.settings.version or 0,",
        "publish_batch(self.settings, 0,",
        (f"{PUBLISHING}a_write_with_an_application_happens_once",),
        "The second write of an application is dropped.",
    ),
    Mutant(
        "a failed attempt gives its writer back",
        "bookie/spark/sink_task.py",
        "            close_quietly(one.writer)\n        self._ranges.clear()",
        "            self._writers.give_back(one.key, one.writer)\n        self._ranges.clear()",
        (f"{TASK}what_a_failed_attempt_wrote_is_in_no_range",),
        "Rows of an attempt that failed are published with the next one.",
    ),
    Mutant(
        "writers are known by the name of a log",
        "bookie/spark/sink_task.py",
        "self._application, self._logs[log].log_id, partition)",
        "self._application, log, partition)",
        (f"{TASK}a_log_that_was_made_anew_gets_new_writers",),
        "A query fails for ever after its log was made anew.",
    ),
    Mutant(
        "an attempt ends before its rows are durable",
        "bookie/spark/sink_task.py",
        "        while self._under_way:\n            self._settle()\n        cut",
        "        cut",
        (f"{TASK}a_record_that_is_too_large_fails_the_attempt",),
        "Rows that were not written are committed.",
        harmless="`cut` waits for the same appends, and a failed one fails it; see its own mutant.",
    ),
    Mutant(
        "a task writes without a bound",
        "bookie/spark/sink_task.py",
        "            while self._under_way and self._under_way_bytes + size_bytes > "
        "UNDER_WAY_BYTES_MAX:\n                self._settle()\n",
        "",
        (f"{TASK}what_is_under_way_has_a_bound",),
        "A task runs out of memory.",
    ),
    Mutant(
        "two tasks have one writer",
        "bookie/spark/task_writers.py",
        "found = self._idle.pop(key, None)\n        return",
        "found = self._idle.get(key)\n        return",
        (f"{UNIT}task_writers.py::test_a_writer_is_one_tasks_at_a_time",),
        "Rows of two tasks are in one range: both batches are refused.",
    ),
    Mutant(
        "a forked process keeps writers",
        "bookie/spark/task_writers.py",
        "    if not _writers or _writers[0].pid != os.getpid():",
        "    if not _writers:",
        (f"{UNIT}task_writers.py::test_a_forked_process_has_writers_of_its_own",),
        "A worker hangs on its parent's writers.",
    ),
    Mutant(
        "rows of a partition change their order",
        "bookie/spark/sink_rows.py",
        'order = np.argsort(codes, kind="stable")',
        "order = np.argsort(codes)",
        (f"{UNIT}sink_rows.py::test_groups_of_many_rows_keep_the_order",),
        "Records of a key are not in the order of the rows.",
    ),
    Mutant(
        "slices overlap",
        "bookie/spark/splits.py",
        """\
                found.append(LogSlice(log, partition, start, at))
                start, room""",
        """\
                found.append(LogSlice(log, partition, start, at + 1))
                start, room""",
        (f"{UNIT}splits.py::test_slices_cover_the_spans_once_and_in_order",),
        "Rows are read twice.",
    ),
    Mutant(
        "an offset behind the end is taken",
        "bookie/spark/read_bounds.py",
        "        if wanted > end:\n",
        "        if False:\n",
        (f"{READER}a_start_behind_the_end_is_refused",),
        "A query that begins behind the end misses the next records.",
    ),
    Mutant(
        "offsets keep the namespace of a log",
        "bookie/spark/stream_offsets.py",
        "        log = plain_name(text)\n",
        "        log = text\n",
        (f"{READER}a_stream_goes_on_with_the_other_name_of_its_log",),
        "A stream of an older version begins again at the earliest record.",
    ),
    Mutant(
        "latest is where the log begins",
        "bookie/spark/read_bounds.py",
        "{EARLIEST: earliest, LATEST: end}.get(wanted, wanted)",
        "{EARLIEST: 0, LATEST: end}.get(wanted, wanted)",
        (f"{READER}a_query_starts_where_its_options_say",),
        "A query over a truncated log fails at once.",
    ),
    Mutant(
        "the first batch is not pinned",
        "bookie/spark/stream_source.py",
        "        if begin == self._initial and not self._is_pinned:\n",
        "        if False:\n",
        (f"{READER}the_first_offset_is_the_start_itself",),
        "If the first batch fails, the query starts again at a later end.",
    ),
    Mutant(
        "a partition that falls behind was made anew",
        "bookie/spark/stream_source.py",
        "{key for key in behind if now - self._behind_since[key] >= BEHIND_SECONDS}",
        "set(behind)",
        (f"{READER}an_end_that_goes_back_for_a_moment_loses_nothing",),
        "A query fails, or reads again, while a bookie is away.",
    ),
    Mutant(
        "a log made anew goes unseen",
        "bookie/spark/stream_source.py",
        "            elif at.is_other(log, surveys.by_log[log].definition):\n",
        "            elif False:\n",
        (f"{READER}a_log_that_is_made_anew_is_a_loss",),
        "Records of the new log are passed over, and the query succeeds.",
    ),
    Mutant(
        "a deleted log is passed over",
        "bookie/spark/stream_source.py",
        "                lose_deleted(self.source, log)\n",
        "                pass\n",
        (f"{READER}a_log_that_is_deleted_is_a_loss",),
        "A query ends well, and lacks records.",
    ),
    Mutant(
        "available now never ends",
        "bookie/spark/stream_source.py",
        "            targets = self._still_there(self._target, surveys)\n",
        "            targets = ends\n",
        (f"{READER}available_now_ends_with_what_was_there",),
        "A query of availableNow runs as long as records come.",
    ),
    Mutant(
        "the second limit is not kept",
        "bookie/spark/stream_source.py",
        "        size = self.source.batch_limits.bytes_max\n",
        "        size = None\n",
        (f"{READER}a_batch_keeps_both_limits",),
        "A batch does not fit into memory.",
    ),
    Mutant(
        "a planner asks for records that are gone",
        "bookie/spark/batch_source.py",
        "        except LogTruncatedError as error:\n            first = error.earliest_offset\n",
        "        except LogTruncatedError:\n            raise\n",
        (
            f"{READER}truncated_bytes_do_not_count",
            f"{READER}records_that_are_truncated_while_a_batch_is_planned",
        ),
        "A stream that lags behind retention ends, although it may lose records.",
    ),
    Mutant(
        "truncated records count as waiting",
        "bookie/spark/stream_source.py",
        "{key: max(at, earliest.get(key, 0)) for key, at in look.begins.items()}",
        "look.begins",
        (f"{READER}a_limit_of_rows_passes_over_truncated_records_at_once",),
        "A stream that lags behind retention makes empty batches, and never catches up.",
    ),
    Mutant(
        "a partition that is new begins at 0",
        "bookie/spark/stream_source.py",
        "surveys, begins | new, ends)",
        "surveys, dict.fromkeys(new, 0) | begins, ends)",
        (f"{READER}a_partition_that_is_new_begins_at_its_earliest_record",),
        "A query with a pattern fails on a log that was truncated.",
    ),
    Mutant(
        "what is wrong is tried again",
        "bookie/spark/patience.py",
        "if not error.retryable or now() >= give_up_at:",
        "if now() >= give_up_at:",
        (f"{UNIT}patience.py::test_what_is_wrong_stays_wrong",),
        "A query with a wrong option hangs for five minutes.",
    ),
    Mutant(
        "a batch goes over its limit",
        "bookie/spark/stream_offsets.py",
        "last - count + 1 + (count - 1) * spare // shared if",
        "last - count + 2 + (count - 1) * spare // shared if",
        (f"{UNIT}stream_offsets.py::test_a_limited_batch_advances_every_partition",),
        "A batch is larger than its limit, or names records that are not there.",
    ),
)
