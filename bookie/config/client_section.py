"""The section ``[client]``: what a client of ledgers waits for and holds in flight."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from bookie.config.quantities import Size
from bookie.config.section import Section
from bookie.ids import BATCH_SIZE_BYTES_MAX


class ClientSettings(Section):
    """Timeouts of a client for one batch, and bounds on what it has in flight for one ledger.

    `connect` in Python, `bookie ledger` and `bookie bench` read it from the file that BOOKIE_CONFIG
    names, and from BOOKIE_CLIENT__KEY. Bookies ignore it.
    """

    own: ClassVar[bool] = True

    add_timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Time for a bookie to answer an add before it is replaced. A pause of the "
        "client's own event loop does not count.",
    )
    replace_after_seconds: float = Field(
        default=3.0,
        gt=0,
        description="Time for a bookie whose connection broke to come back before it is replaced. "
        "If the others are too few to acknowledge, it has only a moment.",
    )
    changes_per_minute_max: int = Field(
        default=20, ge=0, description="Replacements of bookies in one ledger; 0 replaces none."
    )
    read_timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Time for a bookie to answer a read before it counts as unknown.",
    )
    connect_timeout_seconds: float = Field(
        default=5.0, gt=0, description="Time to connect to a bookie."
    )
    speculative_read_seconds: float = Field(
        default=2.0, gt=0, description="Silence after which the next replica is asked as well."
    )
    in_flight_entries_max: int = Field(
        default=65536, ge=1, description="Entries of one ledger sent and not yet acknowledged."
    )
    in_flight_bytes_max: Size = Field(
        default=64 * 2**20,
        ge=2**10,
        description="Bytes of one ledger sent and not yet acknowledged.",
    )
    batch_entries_max: int = Field(
        default=4096, ge=1, le=65536, description="The most entries in one request."
    )
    batch_bytes_max: Size = Field(
        default=BATCH_SIZE_BYTES_MAX,
        ge=2**10,
        le=BATCH_SIZE_BYTES_MAX,
        description="The most entry bytes in one request of several entries.",
    )
    tail_refresh_seconds: float = Field(
        default=10.0, gt=0, description="Silence after which a tailing reader asks by itself."
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        self._at_most("speculative_read_seconds", "read_timeout_seconds")
        self._at_most("batch_entries_max", "in_flight_entries_max")
        self._at_most("batch_bytes_max", "in_flight_bytes_max")
        return self
