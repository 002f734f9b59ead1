"""A value with its version in the metadata store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value and the version of its record in the metadata store, for compare-and-set."""

    value: T
    version: int
