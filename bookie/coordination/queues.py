"""A queue of items; one consumer at a time works on an item, until the work is done.

=========================== ======================================================================
key                         meaning
=========================== ======================================================================
``items/item-<number>``     an item; the oldest item has the smallest number
``taken/item-<number>``     leased: the claim of the consumer that has taken the item
``receipts/<guid>``         leased: permits the put of one item, which deletes the receipt
``turn/…``                  the queue of consumers that wait for an item
=========================== ======================================================================

An item is put exactly once. The process first creates a receipt; then one transaction deletes the
receipt and puts the item. A late or repeated transaction finds no receipt, so it fails.

An item is taken **at least once**. If a consumer's session ends before the item is done, another
consumer gets the item, although the first consumer may still work on it. So the work on an item
must be idempotent, or guarded by the version of a record. A consumer takes an item by a claim,
which contains a guid. If the store did not answer the creation of a claim, the consumer recognises
the claim by its guid, and deletes it. Only the first waiting consumer watches the items, so a new
item wakes only this consumer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Self

from bookie.coordination.locks import LockManager
from bookie.coordination.participant import Participant
from bookie.env.checked import checked
from bookie.errors import (
    BadVersionError,
    LockLostError,
    MetadataClosedError,
    MetadataUnavailableError,
    NoSuchKeyError,
    OperationTimeoutError,
    SessionLostError,
)
from bookie.metadata.model import (
    NOT_EXISTS,
    Change,
    Check,
    Delete,
    Operation,
    Put,
    Record,
    Resync,
    check_key,
)

ATTEMPTS_MAX = 5


class Taken:
    """An item that a consumer has taken: an async context manager.

    If the context is left without an error, the item is deleted as done. If the context is left
    with an error, the item becomes free for other consumers.
    """

    def __init__(self, participant: Participant, item: Record, claim: str, version: int) -> None:
        self._participant = participant
        self._store = participant.store
        self._item = item
        self._claim = claim
        self._version = version
        self._is_over = False
        self._in_doubt = False
        """True if the store did not answer a deletion of the item, so that it may be deleted."""

    @property
    def value(self) -> bytes:
        """The value of the item."""
        return self._item.value

    @property
    def name(self) -> str:
        """The item's name in its queue, ``item-<number>``.

        While the item exists, all newer items have greater numbers.
        """
        return self._item.name

    async def done(self) -> None:
        """Delete the item, because the work on it is done.

        Raises:
            LockLostError: the session ended before the item was deleted, so another consumer may
                have the item.
            MetadataUnavailableError: the store did not answer, so the item may or may not be
                deleted; `done` may be called again.
        """
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._store.transaction(
                    [
                        Delete(self._claim, self._version),
                        # If the queue was deleted meanwhile, numbers begin anew, so a newer item
                        # may have this name: compare the version.
                        Delete(self._item.key, self._item.version),
                    ]
                )
            except MetadataUnavailableError:
                self._in_doubt = True
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                await self._participant.pause(attempt)
            except (NoSuchKeyError, BadVersionError, SessionLostError) as error:
                if self._in_doubt and not await self._is_there():
                    break  # an earlier attempt deleted the item
                await self.give_back()
                raise LockLostError(
                    f"the item {self._item.key} was given back when the session ended"
                ) from error
            else:
                break
        self._is_over = True

    async def _is_there(self) -> bool:
        await self._store.sync()
        record = await self._store.get(self._item.key)
        return record is not None and record.version == self._item.version

    async def give_back(self) -> None:
        """Release the item for other consumers; repeat this until the store answers."""
        if not self._is_over:
            self._is_over = True
            try:
                await self._participant.finish(self._give_back())
            except (SessionLostError, MetadataUnavailableError):
                self._participant.spawn_if_open(self._participant.insist(self._give_back))
            except MetadataClosedError:
                # The participant was closed, so it runs no more work. But its session may still
                # live, so delete the claim here.
                with suppress(MetadataClosedError, MetadataUnavailableError, SessionLostError):
                    await self._give_back()

    async def _give_back(self) -> None:
        with suppress(NoSuchKeyError, BadVersionError):
            await self._store.delete(self._claim, version=self._version)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is not None:
            await self.give_back()
        elif not self._is_over:
            await self.done()


class Queue:
    """The queue at the key `path`."""

    @checked
    def __init__(self, participant: Participant, path: str) -> None:
        self._participant = participant
        self._store = participant.store
        self._path = check_key(path)
        self._locks = LockManager(participant)

    @checked
    async def put(self, value: bytes) -> None:
        """Add an item to the queue, exactly once.

        Raises:
            MetadataUnavailableError: the store did not answer; the item may or may not be in the
                queue.
            SessionLostError: the session ended; the message says that the item was not added, or
                that this is unknown.
        """
        await self._participant.finish(self._put(value))

    async def _put(self, value: bytes) -> None:
        epoch = self._participant.session_epoch
        receipt = await self._make_receipt()
        item = Put(f"{self._path}/items/item-", value, sequential=True)
        in_doubt = False
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self._participant.pause(attempt - 1)
            try:
                await self._store.transaction([Delete(receipt), item])
            except MetadataUnavailableError:
                in_doubt = True
            except NoSuchKeyError as error:
                # While the session lives, only the transaction that puts the item deletes the
                # receipt. So an earlier attempt has put the item.
                if in_doubt and epoch == self._participant.session_epoch:
                    return
                raise SessionLostError(
                    f"the session ended while an item was put into {self._path}"
                    + ("; whether it was put is unknown" if in_doubt else "; it was not put")
                ) from error
            else:
                return
        # Delete the receipt, so that an attempt that arrives at the store later fails.
        self._participant.sweep(partial(self._delete_receipt, receipt))
        raise MetadataUnavailableError(
            f"the metadata store did not answer when an item was put into {self._path}"
        )

    async def _make_receipt(self) -> str:
        """Create a receipt.

        Each attempt uses a new name. So a receipt whose creation got no answer, and that appears
        later, is never used.
        """
        attempt = 0
        while True:
            receipt = f"{self._path}/receipts/{self._participant.new_name()}"
            try:
                await self._store.put(receipt, b"", version=NOT_EXISTS, ephemeral=True)
            except MetadataUnavailableError:
                self._participant.sweep(partial(self._delete_receipt, receipt))
                attempt += 1
                if attempt == ATTEMPTS_MAX:
                    raise
                await self._participant.pause(attempt - 1)
            else:
                return receipt

    async def _delete_receipt(self, receipt: str) -> None:
        with suppress(NoSuchKeyError):
            await self._store.delete(receipt)

    async def size(self) -> int:
        """Return the number of items in the queue, including taken items."""
        return len(await self._store.get_children(f"{self._path}/items"))

    @checked
    async def take(self, *, timeout_seconds: float | None = None) -> Taken:
        """Take the oldest free item; wait up to `timeout_seconds` for a free item (None: no limit).

        Raises:
            OperationTimeoutError: no item was free in time, or consumers that came earlier were
                still waiting.
            MetadataUnavailableError: the store did not answer.
        """
        loop = asyncio.get_running_loop()
        until = None if timeout_seconds is None else loop.time() + timeout_seconds
        turn = await self._locks.acquire(f"{self._path}/turn", timeout_seconds=timeout_seconds)
        given: list[Taken] = []
        try:
            async with turn:
                await self._wait_for_item(given, until)
        except BaseException as error:
            # The item was perhaps taken before the error, but the caller does not get it. So give
            # it back.
            for taken in given:
                self._participant.spawn_if_open(taken.give_back())
            if isinstance(error, TimeoutError):
                raise OperationTimeoutError(
                    f"the queue {self._path} had no item within {timeout_seconds} seconds"
                ) from error
            raise
        return given[0]

    async def _wait_for_item(self, given: list[Taken], until: float | None) -> None:
        """Wait for a free item, take it, and append it to `given`.

        The wait ends with TimeoutError at `until`, a time of the event loop's clock.
        """
        async with asyncio.timeout_at(until), self._store.watch(self._path) as changes:
            while True:
                taken = await self._participant.finish(self._take(), _give_back)
                if taken is not None:
                    given.append(taken)
                    return
                while not self._may_bring_items(await anext(changes)):
                    pass

    def _may_bring_items(self, change: Change) -> bool:
        if isinstance(change, Resync):
            return True
        ours = (f"{self._path}/items/", f"{self._path}/taken/")
        return any(event.key.startswith(ours) for event in change.events)

    async def _take(self) -> Taken | None:
        taken = set(await self._store.get_children(f"{self._path}/taken"))
        names = await self._store.get_children(f"{self._path}/items")
        for name in sorted(names, key=_age):
            if name in taken:
                continue
            item = await self._store.get(f"{self._path}/items/{name}")
            if item is None:
                continue
            claimed = await self._try_to_claim(item)
            if claimed is not None:
                return claimed
        return None

    async def _try_to_claim(self, item: Record) -> Taken | None:
        claim = f"{self._path}/taken/{item.name}"
        guid = self._participant.new_name().encode()
        # The check fails if another consumer has just deleted the item as done. Without the check,
        # this consumer would get an item that no longer exists.
        operations: list[Operation] = [
            Put(claim, guid, NOT_EXISTS, ephemeral=True),
            Check(item.key, item.version),
        ]
        try:
            stat = (await self._store.transaction(operations))[0]
        except BadVersionError:
            return None
        except BaseException:
            # The claim may exist already, or appear later, so delete it in the background.
            self._participant.sweep(partial(self._delete_claim, claim, guid))
            raise
        assert stat is not None
        return Taken(self._participant, item, claim, stat.version)

    async def _delete_claim(self, claim: str, guid: bytes) -> None:
        await self._store.sync()
        record = await self._store.get(claim)
        if record is not None and record.value == guid:
            with suppress(NoSuchKeyError, BadVersionError):
                await self._store.delete(claim, version=record.version)


def _age(name: str) -> tuple[int, str]:
    """Return the sort key that orders names of items by their numbers."""
    return len(name), name


async def _give_back(taken: Taken | None) -> None:
    if taken is not None:
        await taken.give_back()
