"""A writer on its way: awaited for the handle, or entered for a block that closes the ledger."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec

from bookie.client.writer import WriterHandle

P = ParamSpec("P")


class Creating(Coroutine[Any, Any, WriterHandle]):
    """What `create_ledger` returns: a coroutine that is an async context manager as well."""

    __slots__ = ("_coroutine", "_writer")

    def __init__(self, coroutine: Coroutine[Any, Any, WriterHandle]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, WriterHandle]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> WriterHandle:
        self._writer = await self._coroutine
        return await self._writer.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._writer.__aexit__(exc_type, exc, traceback)

    # -- for tasks, which take coroutines only -----------------------------------------------------

    def send(self, value: Any, /) -> Any:
        """As of the coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """As of the coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """As of the coroutine."""
        self._coroutine.close()


def creating(method: Callable[P, Coroutine[Any, Any, WriterHandle]]) -> Callable[P, Creating]:
    """Let what `method` returns be entered, too."""

    @wraps(method)
    def make(*args: P.args, **kwargs: P.kwargs) -> Creating:
        return Creating(method(*args, **kwargs))

    return make
