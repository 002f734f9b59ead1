"""Calls of public methods with arguments of wrong types, generated from their signatures."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Set
from typing import Any, get_args, get_type_hints

from bookie.errors import RequestError

SECONDS_MAX = 10.0
"""A call that takes longer hangs."""

ODD: Mapping[str, Any] = {
    "none": None,
    "bool": True,
    "int": 5,
    "float": 1.5,
    "nan": float("nan"),
    "str": "odd",
    "bytes": b"odd",
    "object": object(),
    "strings": ["odd"],
    "objects": [object()],
    "nothings": [None],
    "mapping": {5: 5},
    "function": lambda *_: None,
}

_SECONDS = {"int", "float"}
_TAKES: Mapping[str, set[str]] = {
    "bool": {"bool"},
    "int": {"int"},
    "float": _SECONDS,
    "str": {"str"},
    "Path": {"str"},
    "bytes": {"bytes"},
    "Payload": {"bytes"},
    "None": {"none"},
    "Moment": {"int"},
    "LogStart": {"none", "int"},
    "DigestName": set(),
    "Transport": set(),
    "OnTruncated": set(),
    "tuple[int, int]": set(),
    "tuple[str, int]": set(),
    "Iterable[str]": {"strings"},
    "Collection[str]": {"strings"},
    "Iterable[Payload]": set(),
    "Iterable[Payload | NewRecord]": set(),
    "Iterable[LogPosition]": set(),
    "Iterable[PendingRange]": set(),
    "Iterable[AuditItem]": set(),
    "Sequence[CopiedGroup]": set(),
    "Sequence[CopyDamage]": set(),
    "Sequence[Operation]": set(),
    "Sequence[Acl]": set(),
    "list[bytes]": set(),
    "Mapping[str, bytes]": set(),
    "Mapping[tuple[str, int], int]": set(),
}
"""By part of an annotation: the values above that are right."""

_CLASSES = {
    "AutoCommit",
    "Check",
    "ClaimMode",
    "CompactionGroup",
    "CompactionLimits",
    "ConsumedBatch",
    "DigestType",
    "GroupRecord",
    "LeaderState",
    "LogPartition",
    "LogPolicy",
    "LogPosition",
    "LogRecord",
    "MetadataSecurity",
    "Participant",
    "RpcSettings",
    "ServiceInstance",
}


def takes(annotation: str) -> set[str]:
    """The values of `ODD` that are right for an annotation.

    Raises:
        LookupError: the annotation is new; add it to the table above.
    """
    right: set[str] = set()
    if annotation.startswith("Callable["):
        return {"function"}
    whole = _TAKES.get(annotation)
    if whole is not None:
        return whole
    for part in annotation.split(" | "):
        if part not in _CLASSES:
            right |= _TAKES[part]
    return right


def parameters_of(method: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """The names and annotations of the parameters of a method, except `self`."""
    for name, parameter in inspect.signature(method).parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            original = inspect.unwrap(method)
            (keywords,) = get_args(get_type_hints(original)[name])
            for keyword, hint in keywords.__annotations__.items():
                yield keyword, str(getattr(hint, "__forward_arg__", hint))
        else:
            yield name, str(parameter.annotation)


def methods_of(kind: type, without: Set[str]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class that have parameters."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in without and list(parameters_of(method)):
            yield name, method


class OddCalls:
    """Makes the calls, and notes each one that was not refused as it should be."""

    def __init__(self, right: Mapping[str, Any]) -> None:
        """`right` has a right value for each name of a parameter that needs one."""
        self._right = right
        self.count = 0
        self.faults: list[str] = []

    def of(self, method: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Descriptions and arguments: one wrong argument each, the others right."""
        needed = {
            name: self._right[name]
            for name, parameter in inspect.signature(method).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_KEYWORD
            and name not in ("self", "cls")
        }
        for name, annotation in parameters_of(method):
            for kind in ODD.keys() - takes(annotation):
                self.count += 1
                yield f"{method.__qualname__}({name}={kind})", {**needed, name: ODD[kind]}

    def refused(self) -> None:
        """Fail with all that was noted."""
        assert self.count, "no call was made"
        if self.faults:
            raise AssertionError("\n".join(self.faults))

    async def methods(
        self, handle: Any, without: Set[str] = frozenset(), kind: type | None = None
    ) -> None:
        """All methods of an async handle, or those of its base `kind`, with wrong arguments."""
        for name, method in methods_of(kind or type(handle), without):
            for what, arguments in self.of(method):
                await self.one(what, getattr(handle, name), arguments)

    async def one(self, what: str, call: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """One call; whatever it makes is awaited, entered or iterated."""
        try:
            async with asyncio.timeout(SECONDS_MAX):
                made = call(**arguments)
                if inspect.isawaitable(made):
                    made = await made
                elif isinstance(made, AsyncGenerator):
                    await anext(made)
                elif hasattr(made, "__aenter__"):
                    await made.__aenter__()
        except RequestError:
            return
        except BaseException as error:  # noqa: BLE001  (that is the finding)
            self.faults.append(f"{what}: {error!r}")
        else:
            self.faults.append(f"{what}: was taken")

    def sync_methods(self, handle: Any, without: Set[str] = frozenset()) -> None:
        """All methods of a handle without an event loop with wrong arguments."""
        for name, method in methods_of(type(handle), without):
            for what, arguments in self.of(method):
                self.sync_one(what, getattr(handle, name), arguments)

    def sync_one(self, what: str, call: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """One call; whatever it makes is entered or iterated."""
        try:
            made = call(**arguments)
            if hasattr(made, "__next__"):
                next(made)
            elif hasattr(made, "__enter__"):
                made.__enter__()
            elif hasattr(made, "result"):
                made.result()
        except RequestError:
            return
        except BaseException as error:  # noqa: BLE001  (that is the finding)
            self.faults.append(f"{what}: {error!r}")
        else:
            self.faults.append(f"{what}: was taken")
