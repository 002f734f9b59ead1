"""A value with its version in the metadata store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value with the version under which the metadata store holds it, for compare-and-set."""

    value: T
    version: int
