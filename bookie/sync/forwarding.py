"""Creates synchronous methods from async methods, with the same errors and docstrings.

Type checkers and `help` see the arguments of the async method. A method with an additional
``timeout`` must be written by hand, because a ParamSpec cannot add a keyword.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, Never, ParamSpec, Protocol, TypeVar, cast

from bookie.sync.loop_thread import LoopThread

P = ParamSpec("P")
H = TypeVar("H")
R = TypeVar("R")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)

_AWAITING = re.compile(r"\n *Await the call,? or enter it(.+\n)+")
"""The paragraph of a docstring that is meant only for callers with an event loop."""


class Shown(Protocol[T_co]):
    """A property, as type checkers see it."""

    def __get__(self, instance: object, owner: type, /) -> T_co: ...

    def __set__(self, instance: object, value: Never, /) -> None: ...


def shown(value: Callable[[H], R]) -> Shown[R]:
    """Return a property that shows a property of ``self._handle``, with the same docstring."""
    of: Any = value  # to a type checker, ``Class.name`` of a property is the getter
    return cast("Shown[R]", property(lambda self: of.fget(self._handle), doc=of.__doc__))


def forwarded(
    verb: Callable[Concatenate[H, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that runs `verb` of ``self._handle`` in the loop and waits for its result."""
    return _method(verb, lambda self, work: self._run(work))


def opened(
    verb: Callable[Concatenate[H, P], Coroutine[Any, Any, R]], kind: Callable[[LoopThread, R], S]
) -> Callable[Concatenate[Any, P], S]:
    """Return a method that runs `verb` in the loop and returns ``kind(home, result)``."""
    method: Any = _method(verb, lambda self, work: kind(self._home, self._run(work)))
    method.__signature__ = signature(verb).replace(return_annotation=kind)
    method.__annotations__ = method.__annotations__ | {"return": kind}
    method.__doc__ = _AWAITING.sub("", method.__doc__ or "")
    return cast("Callable[Concatenate[Any, P], S]", method)


def _method(verb: Callable[..., Any], wait: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    @wraps(verb)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wait(self, verb(self._handle, *args, **kwargs))

    owner = sys._getframe(2)
    method.__module__ = owner.f_globals["__name__"]
    method.__qualname__ = f"{owner.f_locals['__qualname__']}.{verb.__name__}"
    return method
