"""Rates of faults in the simulated world."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """Rates of faults, per step."""

    lose_call: float = 0.01
    break_stream: float = 0.01
    crash_bookie: float = 0.006
    fire_timer: float = 0.03
    fail_metadata: float = 0.01
    read_only: float = 0.003
    lose_disk: float = 0.0
    """Share of crashes that lose data; fewer bookies than an ack quorum do, in all."""
    kill_bookie: float = 0.0
    """Rate of bookies that go for good; such a loss counts like that of a disk."""
    slow: float = 0.25
    """Share of calls and streams that nearly everything else overtakes."""
    busy: float = 0.01
    """Share of adds that are refused with TOO_MANY_REQUESTS."""
    leave: float = 0.003
    """Rate of bookies told to stop: they answer SHUTTING_DOWN until they are down."""
    tell_silence: float = 0.003
    """Rate at which another ledger of the writer's client gets no answer from a bookie."""
