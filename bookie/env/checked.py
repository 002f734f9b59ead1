"""Checks that the arguments of public methods have the types of their annotations.

Without a check, Python accepts a wrong argument, and fails later or does something unexpected:
``logs="orders"`` would mean six logs, one for each letter. Use `checked` for methods that are
called rarely. Methods that are called for each record check their arguments themselves.
"""

from __future__ import annotations

import collections.abc
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Literal, ParamSpec, TypeVar, cast

from bookie.errors import BadRequestError

P = ParamSpec("P")
T = TypeVar("T")

_BYTES = (bytes, bytearray, memoryview)
_SECRET = ("password",)
"""The names of arguments whose values must not appear in errors, because errors are logged."""

_UNIONS = (typing.Union, types.UnionType)


class _WrongError(Exception):
    """A value does not match the annotation."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The kind of values that an annotation accepts."""

    text: str
    """The description of the accepted values in error messages, for example "an integer"."""
    take: Callable[[Any], Any]
    """Checks and returns a value; an iterable is returned as a list. Raises _WrongError."""


def checked(method: Callable[P, T]) -> Callable[P, T]:
    """Return a method that checks the types of its arguments and then calls `method`.

    An argument with the annotation ``Iterable[...]`` is passed as a list. A bytes-like object
    counts as bytes. Too many or unknown arguments still raise Python's TypeError.

    Raises:
        BadRequestError: (the returned method) an argument has another type than its annotation.
    """
    arguments = _Arguments(method)
    if iscoroutinefunction(method):

        @wraps(method)
        async def check_and_await(*args: P.args, **kwargs: P.kwargs) -> Any:
            given, named = arguments.taken(args, kwargs)
            return await method(*given, **named)

        return cast("Callable[P, T]", check_and_await)

    @wraps(method)
    def check_and_call(*args: P.args, **kwargs: P.kwargs) -> T:
        given, named = arguments.taken(args, kwargs)
        return method(*given, **named)

    return check_and_call


class _Arguments:
    """The parameters of one method, whose annotations are read at its first call."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    @cached_property
    def _signature(self) -> Any:
        return signature(self._method)

    @cached_property
    def _kinds(self) -> Mapping[str, _Kind]:
        hints = typing.get_type_hints(self._method)
        kinds: dict[str, _Kind] = {}
        for name, parameter in self._signature.parameters.items():
            if name not in hints:
                continue
            if parameter.kind is Parameter.VAR_KEYWORD:
                keywords = typing.get_type_hints(*typing.get_args(hints[name]))
                kinds |= {keyword: _kind_of(hint) for keyword, hint in keywords.items()}
            else:
                kinds[name] = _kind_of(hints[name])
        return kinds

    def taken(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Check the arguments, and return the arguments to pass to the method.

        Raises:
            BadRequestError: an argument has another type than its annotation.
        """
        bound = self._signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if self._signature.parameters[name].kind is Parameter.VAR_KEYWORD:
                taken: Any = {one: self._take(one, given) for one, given in value.items()}
            else:
                taken = self._take(name, value)
            bound.arguments[name] = taken
        return bound.args, bound.kwargs

    def _take(self, name: str, value: object) -> object:
        kind = self._kinds.get(name)
        if kind is None:
            return value
        try:
            return kind.take(value)
        except _WrongError:
            given = type(value).__name__ if name in _SECRET else _described(value)
            raise BadRequestError(f"{name} must be {kind.text}, not {given}") from None


def _described(value: object) -> str:
    """Return the `repr` of a short text or number; for other values, return the type's name."""
    if isinstance(value, str | int | float) and len(repr(value)) < 40:
        return repr(value)
    return type(value).__name__


def _kind_of(hint: Any) -> _Kind:
    """Return the kind of values that the annotation `hint` accepts.

    An annotation that is not supported accepts every value.
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        kinds = [_kind_of(part) for part in parts]
        return _Kind(" or ".join(kind.text for kind in kinds), partial(_take_any_of, kinds))
    if origin is Literal:
        return _Kind(" or ".join(map(repr, parts)), partial(_take_if, lambda one: one in parts))
    if origin is collections.abc.Callable:
        return _Kind("a function", partial(_take_if, callable))
    if origin is tuple:
        return _tuple_kind(parts)
    if isinstance(origin, type):
        return _generic_kind(origin, parts)
    if not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return _Kind("anything", lambda value: value)
    article = "an" if hint.__name__[0] in "AEIOU" else "a"
    return _Kind(f"{article} {hint.__name__}", partial(_take_if, _is_a(hint)))


def _tuple_kind(parts: tuple[Any, ...]) -> _Kind:
    kinds = [_kind_of(part) for part in parts]
    text = f"a tuple ({', '.join(kind.text for kind in kinds)})"
    return _Kind(text, partial(_take_tuple, kinds))


def _generic_kind(origin: type, parts: tuple[Any, ...]) -> _Kind:
    """Return the `_Kind` for a generic type.

    The `_Kind` of a collection or a mapping also checks the elements. The `_Kind` of any other
    generic type checks only the type itself.
    """
    if issubclass(origin, Mapping):
        key, value = (_kind_of(part) for part in parts)
        return _Kind(
            f"a mapping from {key.text} to {value.text}", partial(_take_mapping, key, value)
        )
    if origin is collections.abc.Iterable:
        element = _kind_of(parts[0])
        return _Kind(f"a list, each {element.text}", partial(_take_many, element))
    if issubclass(origin, collections.abc.Collection):
        element = _kind_of(parts[0])
        return _Kind(
            f"a {origin.__name__.lower()}, each {element.text}",
            partial(_take_collection, origin, element),
        )
    return _Kind(f"a {origin.__name__}", partial(_take_if, _is_a(origin)))


def _is_a(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


def _take_if(holds: Callable[[Any], bool], value: Any) -> Any:
    if not holds(value):
        raise _WrongError
    return value


def _take_any_of(kinds: Iterable[_Kind], value: Any) -> Any:
    for kind in kinds:
        try:
            return kind.take(value)
        except _WrongError:
            continue
    raise _WrongError


def _take_tuple(kinds: list[_Kind], value: Any) -> Any:
    if not isinstance(value, tuple | list) or len(value) != len(kinds):
        raise _WrongError
    for kind, one in zip(kinds, value, strict=True):
        kind.take(one)
    return value


def _take_mapping(key: _Kind, value: _Kind, given: Any) -> Any:
    if not isinstance(given, Mapping):
        raise _WrongError
    for name, one in given.items():
        key.take(name)
        value.take(one)
    return given


def _take_many(element: _Kind, given: Any) -> Any:
    if not isinstance(given, Iterable) or isinstance(given, (str, Mapping, *_BYTES)):
        raise _WrongError
    return [element.take(one) for one in given]


def _take_collection(origin: type, element: _Kind, given: Any) -> Any:
    if isinstance(given, (str, *_BYTES)) or not _is_a(origin)(given):
        raise _WrongError
    for one in given:
        element.take(one)
    return given


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or (isinstance(value, float) and not math.isnan(value))


_PLAIN: Mapping[Any, _Kind] = {
    int: _Kind("an integer", partial(_take_if, _is_integer)),
    float: _Kind("a number", partial(_take_if, _is_number)),
    bool: _Kind("True or False", partial(_take_if, _is_a(bool))),
    str: _Kind("a string", partial(_take_if, _is_a(str))),
    bytes: _Kind("bytes", partial(_take_if, lambda value: isinstance(value, _BYTES))),
    types.NoneType: _Kind("None", partial(_take_if, lambda value: value is None)),
    object: _Kind("anything", lambda value: value),
    Any: _Kind("anything", lambda value: value),
}
