"""A bookie under strace, which answers some of its system calls in the kernel's place."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookie.daemon.local.process import BookieProcess


def strace(output: Path, options: Sequence[str]) -> tuple[str, ...]:
    """The words before a command that is to run under strace.

    The tracer is a grandchild (``-D``). So the process we start is the traced one itself, with its
    own exit status and signals. The filter in the kernel keeps all other calls at full speed.
    """
    return ("strace", "-D", "-f", "--seccomp-bpf", "-q", "-o", str(output), *options, "--")


@dataclass(slots=True)
class TracedProcess(BookieProcess):
    """A bookie process under strace, as soon as there are options for it."""

    options: tuple[str, ...] = ()

    async def _spawn(self, variables: Mapping[str, str]) -> asyncio.subprocess.Process:
        if not self.options:
            # `super()` does not know this class any more: slots made another one of it.
            return await BookieProcess._spawn(self, variables)
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        configuration = str(self.directory / "bookie.toml")
        try:
            return await asyncio.create_subprocess_exec(
                *strace(self.directory / "strace.log", self.options),
                *(sys.executable, "-m", "bookie", "serve", "--config", configuration),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=variables,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)


def log_events(log: Path) -> list[dict[str, Any]]:
    """The lines of a log in JSON, whatever stands between them."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
