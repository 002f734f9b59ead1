"""Turn operations of the store into one etcd Txn, and its response into results or an error.

======================== ============================================ ===========================
operation                compares                                     writes
======================== ============================================ ===========================
put                      no ancestor has a lease, nor the record      put
put of version v         mod_revision = v, has no lease               put
put of an ephemeral      has a lease; with a version v, instead:      put that keeps the lease
record                   mod_revision = v
put that creates         absent, no ancestor has a lease              put
ephemeral put, creates   the same, and no key below                   put with our lease
ephemeral put            as in the last read: absent, or our lease    put with our lease
ephemeral put of v       mod_revision = v, has a lease                put with our lease
delete                   present or mod_revision = v, nothing below   delete
check                    mod_revision = v, or absent                  nothing
======================== ============================================ ===========================

After some puts, the Txn also reads the new record, to learn if the record existed before. If
possible, the writes stand in the Txn itself, because etcd before 3.5.28 and 3.6.9 does not check
rights in nested Txns. Only if the Txn would have too many parts, the writes are put into nested
Txns.

Instead of reading first, the store guesses three facts: if a record is ephemeral, if our ephemeral
record exists, and a sequence's last number. If a guess is wrong, the Txn writes nothing, its reads
show the fact, and the Txn is built again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from bookie._pb import etcd_pb2 as pb
from bookie.errors import MetadataUnavailableError, SessionLostError
from bookie.metadata.etcd import messages
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.etcd.lease import Receipt, mark
from bookie.metadata.etcd.messages import ConditionReads, Part, owner
from bookie.metadata.evaluate import NO_OWNER, evaluate
from bookie.metadata.model import (
    NOT_EXISTS,
    Check,
    Delete,
    Operation,
    Put,
    Stat,
    ancestors,
    check_transaction,
    parent_of,
    sequential_key,
)

SHARED_SEQUENCES = 1024
"""The number of counters for ephemeral sequential records; all keys of a scope share them."""

COUNTERS_MAX = 4096
"""The most sequences whose last number a store remembers."""

ROUNDS_MAX = 1000
"""The most times that a Txn is built again because its guesses were wrong."""


class SequenceCounters:
    """The last known number of each sequence; without this number, a put needs one more Txn."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def last(self, sequence: str) -> tuple[int, int]:
        """Return the number and mod_revision of the sequence's counter; (0, 0) if unknown."""
        return self._seen.get(sequence, (0, 0))

    def saw(self, sequence: str, number: int, revision: int) -> None:
        if len(self._seen) >= COUNTERS_MAX:
            self._seen.clear()
        self._seen[sequence] = (number, revision)


class Transaction:
    """One transaction of the store; for each attempt, a new Txn is built from it.

    `operations` must have passed `check_transaction`.
    """

    def __init__(
        self, scope: KeyLayout, operations: Sequence[Operation], counters: SequenceCounters
    ) -> None:
        self._scope = scope
        self._given = operations
        self.is_sequential = any(isinstance(one, Put) and one.sequential for one in operations)
        self._counters = counters
        self._rounds = 0
        self._ours: set[str] = set()
        """Keys of ephemeral puts without a version, for which our session already has a record."""
        self._leased: set[str] = set()
        """Keys of non-ephemeral puts whose records were found to be ephemeral."""
        self._skipped: dict[str, int] = {}
        """Sequence → a number greater than the counter, but already used by an existing record."""
        self._numbers: dict[str, int] = {}
        self._operations = operations
        self._reads: ConditionReads
        self._receipt_read: int
        self._sequence_reads: dict[str, int]
        self._is_large = False
        self._lease = 0

    @property
    def first_key(self) -> str:
        """The first written key, for messages; if no key is written, the first key."""
        written = [one.key for one in self._given if not isinstance(one, Check)]
        return written[0] if written else self._given[0].key

    # ---- the request

    def request(self, receipt: Receipt) -> pb.TxnRequest:
        """Build the Txn from the current guesses; the writes of the Txn also replace `receipt`."""
        compares, writes = self._prepare(receipt.lease)
        self._receipt_read = self._reads.want_value(receipt.key)
        return self._assemble(receipt, compares, [mark(receipt), *writes])

    def _prepare(self, lease: int) -> tuple[list[Part], list[Part]]:
        self._lease = lease
        if self.is_sequential:
            self._number()
        self._reads = ConditionReads()
        compares: dict[bytes, Part] = {}
        writes: list[Part] = []
        for operation in self._operations:
            self._reads.want_record(self._scope, operation.key)
            match operation:
                case Put():
                    writes += self._put(operation, compares)
                case Delete():
                    writes.append(self._delete(operation, compares))
                case Check():
                    self._compare_version(operation.key, operation.version, compares)
        self._sequence_reads = {}
        for key, number in self._numbers.items():
            counter, (_, revision) = self._scope.sequence(key), self._counters.last(key)
            compares[b"#" + counter] = messages.mod(counter, revision)
            writes.append(messages.put(counter, b"%d" % number, 0))
            self._sequence_reads[key] = self._reads.want_value(counter)
        return list(compares.values()), writes

    def _number(self) -> None:
        """Replace each sequential put by a put of the key with the next number."""
        self._numbers = {}
        self._operations = numbered = list(self._given)
        named = {operation.key for operation in self._given}
        for index, operation in enumerate(self._given):
            if isinstance(operation, Put) and operation.sequential:
                sequence = _sequence_of(operation)
                last, _ = self._counters.last(sequence)
                number = max(last, self._skipped.get(sequence, 0)) + 1
                while sequential_key(operation.key, number) in named:
                    # Another operation of this transaction has this key, so take the next number.
                    number += 1
                self._numbers[sequence] = number
                numbered[index] = replace(
                    operation,
                    key=sequential_key(operation.key, number),
                    version=NOT_EXISTS,
                    sequential=False,
                )
        check_transaction(numbered)

    def _put(self, put: Put, compares: dict[bytes, Part]) -> list[Part]:
        key = self._scope.key(put.key)
        lease = self._lease if put.ephemeral else 0
        if put.version is not None and put.version != NOT_EXISTS:
            compares[key] = messages.version(key, put.version)
            if put.ephemeral:
                compares[b"!" + key] = messages.leased(key)
                return [messages.put(key, put.value, lease)]
            if put.key in self._leased:
                return [messages.keep(key, put.value), messages.stat(key)]
            compares[b"!" + key] = messages.lease(key, 0)
            return [messages.put(key, put.value, 0)]
        for above in ancestors(put.key):
            self._reads.want_record(self._scope, above)
            higher = self._scope.key(above)
            compares[b"^" + higher] = messages.lease(higher, 0)
        if put.ephemeral:
            self._reads.want_below(self._scope, put.key)
            if put.key in self._ours:
                compares[key] = messages.lease(key, lease)
                return [messages.put(key, put.value, lease)]
        if put.version is None and not put.ephemeral:
            if put.key in self._leased:
                compares[key] = messages.leased(key)
                return [messages.keep(key, put.value), messages.stat(key)]
            compares[key] = messages.lease(key, 0)
            return [messages.put(key, put.value, 0), messages.stat(key)]
        compares[key] = messages.absent(key)
        if put.ephemeral:
            compares[b"/" + key] = messages.none_below(self._scope, put.key)
        return [messages.put(key, put.value, lease)]

    def _delete(self, delete: Delete, compares: dict[bytes, Part]) -> Part:
        key = self._scope.key(delete.key)
        if delete.version is None:
            compares[key] = messages.present(key)
        else:
            compares[key] = messages.version(key, delete.version)
        self._reads.want_below(self._scope, delete.key)
        compares[b"/" + key] = messages.none_below(self._scope, delete.key)
        return messages.delete(key)

    def _compare_version(self, key: str, version: int, compares: dict[bytes, Part]) -> None:
        name = self._scope.key(key)
        compares[name] = (
            messages.absent(name) if version == NOT_EXISTS else messages.version(name, version)
        )

    def _assemble(
        self, receipt: Receipt, compares: list[Part], writes: list[Part]
    ) -> pb.TxnRequest:
        reads = self._reads.operations()
        self._is_large = max(len(compares), len(writes), len(reads)) > messages.OPERATIONS_MAX
        own = messages.mod(receipt.key, receipt.revision)
        if self._is_large:
            # If this Txn fails, a separate Txn of reads must find the reason; see `reads`.
            then = messages.conjunction(self._scope, compares, writes)
            otherwise = [messages.stat(receipt.key)]
            return pb.TxnRequest(compare=[own], success=then, failure=otherwise)
        return pb.TxnRequest(compare=[own, *compares], success=writes, failure=reads)

    # ---- the response

    def take(self, receipt: Receipt, response: pb.TxnResponse) -> list[Stat | None] | None:
        """Return the results, or None if the Txn must be built again because a guess was wrong.

        Raises:
            SessionLostError: the session ended; nothing was written.
            MetadataUnavailableError: in each of `ROUNDS_MAX` attempts, other sessions changed
                records on which this Txn depends.
            BookieError: a condition does not hold (`evaluate`); nothing was written.
        """
        responses: Iterable[Any] = response.responses
        if response.succeeded:
            receipt.revision = revision = response.header.revision
            for key, number in self._numbers.items():
                self._counters.saw(key, number, revision)
            if self._is_large:
                responses = messages.ungrouped(responses)
            written = iter(responses)
            next(written)  # the receipt's response
            return self._results(revision, written)
        if self._is_large:
            raise session_lost()
        self._learn(receipt, responses)
        return None

    def reads(self) -> pb.TxnRequest:
        """Build a Txn of reads for `learn`, after etcd refused a large Txn with `CompactedError`.

        A large Txn that etcd has refused did no reads. So the Txn of reads comes later, and `learn`
        evaluates the operations against a later state. If all operations would succeed in the later
        state, the large Txn is built again.
        """
        return pb.TxnRequest(success=messages.grouped(self._scope, self._reads.operations()))

    def learn(self, receipt: Receipt, response: pb.TxnResponse) -> None:
        """Find the reason of the failure in etcd's response to the Txn that `reads` built.

        If a guess was wrong, correct it for the next attempt; otherwise raise an error as `take`
        does.
        """
        self._learn(receipt, messages.ungrouped(response.responses))

    def _results(self, revision: int, written: Iterator[Any]) -> list[Stat | None]:
        results: list[Stat | None] = []
        for operation in self._operations:
            if isinstance(operation, Check):
                results.append(None)
                continue
            next(written)  # the write's response
            if isinstance(operation, Delete):
                results.append(None)
            elif self._is_read(operation):
                kv = next(written).response_range.kvs[0]
                results.append(stat_of(operation.key, kv, self._lease))
            else:
                results.append(self._stat(operation, revision))
        return results

    def _is_read(self, put: Put) -> bool:
        """True if, for this put, the Txn also reads the new record after the write; see `_put`."""
        if put.ephemeral or put.version == NOT_EXISTS:
            return False
        return put.version is None or put.key in self._leased

    def _stat(self, put: Put, revision: int) -> Stat:
        is_new = put.version in (None, NOT_EXISTS) and put.key not in self._ours
        leased = put.ephemeral
        return Stat(put.key, revision, revision, None, None, leased, leased, is_new)

    def _learn(self, receipt: Receipt, responses: Iterable[Any]) -> None:
        """Find the failed condition in the answers to the reads; see `learn`."""
        self._reads.take(responses)
        found = self._reads.value(self._receipt_read)
        if (found.mod_revision if found is not None else 0) != receipt.revision:
            raise session_lost()
        self._find_failure()

    def _find_failure(self) -> None:
        """Raise the error of the first condition that failed, or correct a wrong guess."""
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise MetadataUnavailableError(
                f"others kept changing what a transaction on {self._given[0].key} depends on"
            )
        learned = False
        for key, index in self._sequence_reads.items():
            last = _number(self._reads.value(index))
            learned |= last != self._counters.last(key)
            self._counters.saw(key, *last)
        if learned:
            return
        for given, operation in zip(self._given, self._operations, strict=True):
            if not isinstance(given, Put) or not given.sequential:
                continue
            if self._reads.find(operation.key) is not None:
                # A key with this number exists, although the counter is lower. Try the next number.
                sequence = _sequence_of(given)
                self._skipped[sequence] = self._numbers[sequence]
                return
        evaluate(self._operations, self._reads, owner(self._lease), 0)
        for operation in self._operations:
            if not isinstance(operation, Put):
                continue
            seen = self._reads.find(operation.key)
            if seen is not None and operation.ephemeral and operation.version is None:
                self._ours.add(operation.key)
            elif seen is not None and not operation.ephemeral and seen.owner != NO_OWNER:
                self._leased.add(operation.key)
            else:
                self._ours.discard(operation.key)
                self._leased.discard(operation.key)

    # ---- after a lost reply

    def confirmation(self, revision: int) -> pb.TxnRequest:
        """Build a Txn that reads the records of `revision`; `confirmed` takes the response."""
        reads = [
            messages.stat(self._scope.key(operation.key), revision=revision)
            for operation in self._operations
            if isinstance(operation, Put)
        ]
        return pb.TxnRequest(success=messages.grouped(self._scope, reads))

    def confirmed(self, receipt: Receipt, response: pb.TxnResponse) -> list[Stat | None]:
        """Return the results of the write from `response`, which answers `confirmation`."""
        for key, number in self._numbers.items():
            self._counters.saw(key, number, receipt.revision)
        written = messages.ungrouped(response.responses)
        return [
            stat_of(operation.key, next(written).response_range.kvs[0], self._lease)
            if isinstance(operation, Put)
            else None
            for operation in self._operations
        ]


def _sequence_of(put: Put) -> str:
    """Return the sequence from which a sequential put takes its number.

    Ephemeral records share `SHARED_SEQUENCES` sequences; the key of a record's parent determines
    the sequence.
    """
    if not put.ephemeral:
        return put.key
    return f"/{crc32(parent_of(put.key).encode()) % SHARED_SEQUENCES:04}"


def _number(counter: Any) -> tuple[int, int]:
    """Return the number in a counter's record and the record's revision; (0, 0) for None."""
    return (int(counter.value), counter.mod_revision) if counter is not None else (0, 0)


def session_lost() -> SessionLostError:
    """Return the error for a write that failed because its session, and so its receipt, ended."""
    return SessionLostError("the session with etcd ended before the write")


def stat_of(key: str, kv: Any, lease: int) -> Stat:
    """Return the `Stat` of a record in etcd; `lease` is the lease of the session that asks."""
    return Stat(
        key=key,
        version=kv.mod_revision,
        revision=kv.mod_revision,
        created_ms=None,
        modified_ms=None,
        ephemeral=kv.lease != 0,
        created_by_self=kv.lease == lease and kv.lease != 0,
        first_version=kv.version == 1,
    )
