"""Print the findings of ``bookie ledger explain``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bookie.cli.options import OutputFormat
from bookie.cli.output import Record, print_record, print_records

if TYPE_CHECKING:
    from bookie.ledger.recover.explanation import LedgerExplanation, SlotFindings, TailRange

_CURRENT = {True: "current", False: "another", None: "unknown"}


def print_explanation(found: LedgerExplanation, output: OutputFormat) -> None:
    """Print the metadata, each bookie's answer, the tail and the verdict."""
    metadata = found.metadata
    summary: Record = {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.name,
        "metadata_version": found.version,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum_size,
        "ack_quorum": metadata.ack_quorum_size,
        "last_add_confirmed": None if metadata.is_closed else found.last_add_confirmed,
        "last_entry_id": metadata.last_entry_id if metadata.is_closed else None,
        "bytes": metadata.length if metadata.is_closed else None,
    }
    fragments: list[Record] = [
        {"first_entry_id": fragment.first_entry_id, "bookies": fragment.bookies}
        for fragment in metadata.fragments
    ]
    slots = [_slot_record(slot) for slot in found.slots]
    tail = [_tail_record(part) for part in found.tail]
    verdict = found.verdict()
    if output is OutputFormat.JSON:
        whole = {
            **summary,
            "fragments": fragments,
            "slots": [
                {
                    **record,
                    "registered_incarnation": slot.registered_incarnation,
                    "running_incarnation": slot.incarnation,
                    "cookie_incarnation": slot.cookie_incarnation,
                }
                for record, slot in zip(slots, found.slots, strict=True)
            ],
            "tail": tail,
            "decidable": found.is_decidable,
            "verdict": verdict,
        }
        print(json.dumps(whole, indent=2))
        return
    print_record(summary, output)
    print()
    print_records(fragments, output)
    if slots:
        print()
        print_records(slots, output)
        print()
        print_records(tail, output, empty="no bookie that answered has entries beyond the LAC")
    print()
    for sentence in verdict:
        print(sentence)


def _slot_record(slot: SlotFindings) -> Record:
    return {
        "slot": slot.slot,
        "bookie": slot.bookie_id,
        "registered": slot.registration,
        "incarnation": _CURRENT[slot.is_current],
        "answer": slot.answer,
        "fenced": slot.fenced,
        "last_add_confirmed": slot.last_add_confirmed,
        "last_entry_id": slot.last_entry_id,
    }


def _tail_record(part: TailRange) -> Record:
    return {
        "first_entry_id": part.first_entry_id,
        "last_entry_id": part.last_entry_id,
        "copies": len(part.holders),
        "bookies": part.holders,
    }
