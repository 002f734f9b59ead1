"""C13: at the end the bookies that the metadata names have enough copies."""

from __future__ import annotations

from tests.ledger_history.ledger_view import Findings, LedgerView


def check_replication(view: LedgerView, findings: Findings) -> None:
    """C13: each entry has an ack quorum of verified copies in its write set.

    Each bookie of the write set whose data was destroyed excuses one copy. After repair nothing
    excuses a copy, and the whole write quorum has to be there. Copies elsewhere do not count.
    """
    final = view.closed
    if final is None or final.copies is None:
        return
    for entry_id in range(final.last_entry_id + 1):
        write_set = view.write_set(entry_id)
        holders = [name for name in write_set if entry_id in final.copies.get(name, {})]
        if view.state.is_repaired and not view.may_be_lost(entry_id):
            least = final.write_quorum_size
        else:
            least = final.ack_quorum_size - view.destroyed_holders(entry_id)
        if len(set(holders)) < least:
            message = f"entry {entry_id} has {len(holders)} copies of {least}: on {holders}"
            findings.add("C13", view.ledger_id, message, final)
