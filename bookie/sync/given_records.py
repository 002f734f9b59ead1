"""Yields the records of batches one by one, as fast as a loop over a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import length_hint
from typing import Generic, TypeVar

R = TypeVar("R")


class GivenRecords(Generic[R]):
    """Yields the records of batches one by one, and knows the record that it yielded last.

    `fetch` returns the next batch, which is not empty, or raises StopIteration at the end. For each
    batch, `fetch` runs once; between two records of a batch, no Python code of this class runs.
    Only one thread may use an object at a time.
    """

    def __init__(self, fetch: Callable[[], Sequence[R]]) -> None:
        self._fetch = fetch
        self._batch: Sequence[R] = ()
        self._rest: Iterator[R] = iter(())
        """All loops share this iterator over the records of `_batch` that were not yielded yet."""
        self._last: R | None = None
        """The last record that was yielded before `_batch`."""

    def __iter__(self) -> Iterator[R]:
        """Yield the next records; a new loop begins after the record that was yielded last."""
        return chain.from_iterable(chain((self._rest,), iter(self._next_rest, None)))

    def batches(self) -> Iterator[Sequence[R]]:
        """Yield the records in batches.

        If a loop has taken only a part of the current batch, the other records of this batch come
        first.
        """
        return iter(self._next_batch, ())

    @property
    def last(self) -> R | None:
        """The record that was yielded last; None before the first record."""
        given = len(self._batch) - length_hint(self._rest)
        return self._batch[given - 1] if given else self._last

    @property
    def rest(self) -> Sequence[R]:
        """The records that were fetched and not yielded yet."""
        left = length_hint(self._rest)
        return self._batch[-left:] if left else ()

    def drop_rest(self) -> Sequence[R]:
        """Drop and return the records of the current batch that were not yielded yet.

        A running loop continues with the next batch.
        """
        self._last = self.last
        self._batch = ()
        return tuple(self._rest)

    def _next_rest(self) -> Iterator[R]:
        # `length_hint` of a list's iterator is the number of records that were not taken yet.
        self._take(list(self._fetch()))
        self._rest = iter(self._batch)
        return self._rest

    def _next_batch(self) -> Sequence[R]:
        if rest := tuple(self._rest):
            return rest
        self._take(self._fetch())
        return self._batch

    def _take(self, batch: Sequence[R]) -> None:
        self._last = self.last
        self._batch, self._rest = batch, iter(())
