"""The result of `create_ledger`: await it, or use ``async with``, which also closes the ledger."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
H = TypeVar("H", bound=AbstractAsyncContextManager[Any])


class Creating(Coroutine[Any, Any, H], Generic[H]):
    """The result of `create_ledger`: a coroutine that is also an async context manager."""

    __slots__ = ("_coroutine", "_writer")

    def __init__(self, coroutine: Coroutine[Any, Any, H]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, H]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> H:
        self._writer = await self._coroutine
        await self._writer.__aenter__()
        return self._writer

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._writer.__aexit__(exc_type, exc, traceback)

    # -- for tasks, which accept only coroutines ---------------------------------------------------

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()


def creating(method: Callable[P, Coroutine[Any, Any, H]]) -> Callable[P, Creating[H]]:
    """Decorate `method`, so that its coroutines are also async context managers."""

    @wraps(method)
    def make(*args: P.args, **kwargs: P.kwargs) -> Creating[H]:
        return Creating(method(*args, **kwargs))

    return make
