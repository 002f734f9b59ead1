"""A row of the table of parsers, and how one input is tried on it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np

from bookie.errors import FormatError

HERE = Path(__file__).parent
CORPUS: Final = HERE / "corpus"
VECTORS: Final = HERE.parent / "vectors"

CPU_SECONDS_MAX: Final = 1.0
"""An input that costs more processor time is a failure, whatever else the machine does."""

HANGS_AFTER_SECONDS: Final = 5.0
"""After so much processor time of this process an input is given up."""

GROWTH_BYTES_MAX: Final = 50 * 1024 * 1024
"""Memory that the parser of one input may take at its peak."""

Parse = Callable[[bytes], Any]


class HangError(Exception):
    """A parser did not return."""


@dataclass(frozen=True)
class Target:
    """One parser of bytes from outside.

    `refuses` are the errors that the parser's docstring names. Any other error is a failure.
    """

    name: str
    parse: Parse
    seeds: Sequence[bytes]
    """Valid inputs, made by the product's own encoders."""
    refuses: tuple[type[Exception], ...] = (FormatError,)
    encode: Callable[[Any], bytes] | None = None
    """Encodes a parsed value. The bytes must parse to an equal value."""
    encode_refuses: tuple[type[Exception], ...] = ()
    """Errors of the encoder about values that are valid, but too large to be written."""
    examples: int = 2000
    """How many inputs each test tries, by day as well as at night."""
    hangs_after_seconds: float = HANGS_AFTER_SECONDS
    around: Callable[[], AbstractContextManager[Any]] | None = None
    """Is entered before the first input and left after the last one."""

    def __str__(self) -> str:
        return self.name

    @cached_property
    def corpus(self) -> list[bytes]:
        """Inputs that once failed, or that mutations hardly find."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*"))]

    def check(self, data: bytes) -> bool:
        """Try one input; return True if the parser took it.

        Raises:
            AssertionError: the parser is too slow, or what it took does not survive its encoder.
            Exception: whatever the parser raises beyond its contract.
        """
        with _interrupted(self.hangs_after_seconds):
            is_taken, value = self.answer(data)
            if is_taken and self.encode is not None:
                self._check_again(value, data)
        return is_taken

    def answer(self, data: bytes) -> tuple[bool, Any]:
        """Parse one input; return False and None if the parser refused it. Raises like `check`."""
        began = time.thread_time()
        try:
            return True, self.parse(data)
        except self.refuses:
            return False, None
        finally:
            spent = time.thread_time() - began
            assert spent <= CPU_SECONDS_MAX, f"{self.name} took {spent:.1f} s for {data[:200]!r}"

    def _check_again(self, value: Any, data: bytes) -> None:
        assert self.encode is not None
        try:
            encoded = self.encode(value)
        except self.encode_refuses:
            return
        again = plain(self.parse(encoded))
        assert again == plain(value), f"{self.name}: {data!r} and {encoded!r} differ"


def plain(value: Any) -> Any:
    """Return a value of tuples, numbers and texts, which can be compared."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return sorted(((plain(key), plain(one)) for key, one in value.items()), key=repr)
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if is_dataclass(value):
        return [plain(getattr(value, one.name)) for one in fields(value)]
    if isinstance(getattr(value, "payload", None), bytes | memoryview):  # a batch
        return [
            value.ledger_id,
            value.entry_ids().tolist(),
            plain(value.sizes),
            plain(value.payload),
        ]
    return value


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Interrupt a parser that does not return."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextmanager
def watched(target: Target) -> Iterator[None]:
    """Run a test of a target: its surroundings, the end of what hangs, and a bound of memory."""

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise HangError(f"{target} takes more than {target.hangs_after_seconds:g} s for one input")

    before = signal.signal(signal.SIGVTALRM, give_up)
    try:
        if target.around is None:
            yield
        else:
            with target.around():
                yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def bounded_growth(what: str) -> Iterator[None]:
    """Fail if the process had much more memory at some moment than at the beginning."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what is used now
    before = _peak_bytes()
    yield
    growth = _peak_bytes() - before
    assert growth <= GROWTH_BYTES_MAX, f"{what} took {growth >> 20} MiB of memory"


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this kernel does not tell the peak of the memory")


def vectors(file: str, key: str = "", *values: object) -> list[bytes]:
    """Return the golden bytes of a format, which `tests/vectors` holds to the encoders."""
    cases = json.loads((VECTORS / f"{file}.json").read_text(encoding="ascii"))
    return [
        case["text"].encode("ascii")
        if "text" in case
        else bytes.fromhex(case["hex"]) + bytes(case.get("zeros_after", 0))
        for case in cases
        if not key or case["fields"].get(key) in values
    ]
