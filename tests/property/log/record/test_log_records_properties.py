"""Many records at once have the bytes of each one alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bookie.log.record.log_record import LogRecord, encode_log_record
from bookie.log.record.log_records import FIXED_SIZE_BYTES, LATE_SIZE_BYTES, record_starts

TIMES = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.lists(st.tuples(TIMES, st.none() | st.binary(max_size=4)), min_size=1, max_size=8)


@given(RECORDS, TIMES)
def test_starts_of_records(times: list[tuple[int, bytes | None]], greatest_ms: int) -> None:
    records = [LogRecord(at_ms, b"", key) for at_ms, key in times]
    keys = [record.key for record in records]
    starts = record_starts(
        np.array([record.timestamp_ms for record in records], np.int64),
        greatest_ms,
        np.array([key is not None for key in keys]),
        np.array([len(key or b"") for key in keys], np.int64),
        np.zeros(len(records), np.int64),
    )
    for index, record in enumerate(records):
        fixed = starts.fixed[index * FIXED_SIZE_BYTES :][:FIXED_SIZE_BYTES]
        late = starts.late[index * LATE_SIZE_BYTES :][:LATE_SIZE_BYTES]
        found = fixed + (late if starts.is_late[index] else b"") + (record.key or b"")
        assert found == encode_log_record(record, greatest_ms=greatest_ms)
        greatest_ms = max(greatest_ms, record.timestamp_ms)
    assert starts.greatest_ms == greatest_ms
