"""How often things go wrong in the simulated world."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """How often things go wrong, per step."""

    lose_call: float = 0.01
    break_stream: float = 0.01
    crash_bookie: float = 0.006
    fire_timer: float = 0.03
    fail_metadata: float = 0.01
    read_only: float = 0.003
    lose_disk: float = 0.0
    """How often a bookie that crashes loses data as well; fewer than an ack quorum do, in all."""
    kill_bookie: float = 0.0
    """How often a bookie goes for good; such a loss counts like that of a disk."""
    slow: float = 0.25
    """How many calls and streams are overtaken by nearly everything else."""
    busy: float = 0.01
    """How many adds are refused with TOO_MANY_REQUESTS."""
    leave: float = 0.003
    """How often a bookie is told to stop: it answers SHUTTING_DOWN until it is down."""
    tell_silence: float = 0.003
    """How often another ledger of the writer's client waits for a bookie in vain."""
