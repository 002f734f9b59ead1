"""The section ``[placement]``: the choice of bookies for ledgers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bookie.config.section import DYNAMIC, Section


class PlacementSettings(Section):
    """The choice of bookies for ledgers. Set it for the whole cluster.

    Every client follows the cluster setting. Labels of bookies (`bookie node label`) name racks,
    zones and regions. Bookies ignore this section.
    """

    policy: Literal["default", "rack", "zone", "region"] = Field(
        default="default",
        description="The label that tells which bookies fail together. default: none, all bookies"
        " are equal. The copies of each entry are spread over as many as possible.",
        json_schema_extra=DYNAMIC,
    )
    domains_min: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Racks, zones or regions that the copies of each entry should span at least.",
        json_schema_extra=DYNAMIC,
    )
    ack_domains_min: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Racks, zones or regions that must have stored an entry before it is"
        " acknowledged, beside the ack quorum. Appends fail while too few answer.",
        json_schema_extra=DYNAMIC,
    )
    enforce: bool = Field(
        default=False,
        description="Refuse new ledgers and replacements whose copies would span fewer domains.",
        json_schema_extra=DYNAMIC,
    )
    weigh_free_space: bool = Field(
        default=False,
        description="Choose bookies with more free space more often, up to three times as often as"
        " the median.",
        json_schema_extra=DYNAMIC,
    )
