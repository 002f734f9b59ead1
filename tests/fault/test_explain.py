"""``bookie ledger explain`` against real processes: healthy, dead and wiped bookies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fault.lossy_cluster import LossyCluster, create, lossy_cluster


async def explained(cluster: LossyCluster, ledger_id: int) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of the command."""
    status, said = await cluster.command("ledger", "explain", str(ledger_id), "-o", "json")
    return status, json.loads(said)


@pytest.mark.timeout(1800)
async def test_explain_as_bookies_come_and_go(tmp_path: Path) -> None:
    """Open, with a bookie in limbo, with one and two dead, and closed by a recovery."""
    async with lossy_cluster(f"local://{tmp_path}/metadata", tmp_path) as cluster:
        client = await cluster.client()
        writer = await create(client)
        for number in range(3):
            await writer.append(b"%d" % number)
        status, found = await explained(cluster, writer.ledger_id)
        assert (status, found["state"], found["decidable"]) == (0, "OPEN", True)
        assert [slot["answer"] for slot in found["slots"]] == ["ok"] * 3
        assert not any(slot["fenced"] for slot in found["slots"])
        assert found["verdict"][0] == "a recovery would close it at entry 2"

        assert await writer.append(b"nobody was fenced") == 3
        await cluster.kill("b3")
        await cluster.wipe("b3")
        await cluster.start("b3")
        status, found = await explained(cluster, writer.ledger_id)
        answers = {slot["bookie"]: slot["answer"] for slot in found["slots"]}
        assert (status, answers) == (0, {"b1": "ok", "b2": "ok", "b3": "in limbo"})
        assert {slot["incarnation"] for slot in found["slots"]} == {"current"}
        assert await writer.append(b"nobody was fenced") == 4

        await cluster.kill("b2")
        status, found = await explained(cluster, writer.ledger_id)
        assert (status, found["decidable"]) == (1, False)
        bookies = found["fragments"][-1]["bookies"]
        reasons = {"b2": "no answer", "b3": "in limbo"}
        missing = ", ".join(f"{name} ({reasons[name]})" for name in bookies if name in reasons)
        assert (
            "a recovery would need answers of at least 1 more bookie of write set "
            f"{{{', '.join(bookies)}}}: {missing}"
        ) in found["verdict"]
        status, said = await cluster.command("ledger", "explain", str(writer.ledger_id))
        assert status == 1
        assert missing in said

        await cluster.start("b2")
        await cluster.kill("b3")
        status, found = await explained(cluster, writer.ledger_id)
        assert (status, found["verdict"][0]) == (0, "a recovery would close it at entry 4")
        status, said = await cluster.command("ledger", "recover", str(writer.ledger_id))
        assert status == 0, said
        status, found = await explained(cluster, writer.ledger_id)
        assert (status, found["state"], found["last_entry_id"]) == (0, "CLOSED", 4)
        assert found["slots"] == []
        assert "nothing to decide" in found["verdict"][0]
