"""What commands ask at a terminal before they destroy something, and what each answer comes to."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.cluster.instance import initialize_cluster
from bookie.daemon.local.process import child_environment
from bookie.metadata.connect import open_store

SECONDS_MAX = 300.0
DONE, FAILED, INTERRUPTED = 0, 1, 130

ANSWERS = {
    "yes": (b"y\n", DONE, ""),
    "no": (b"n\n", FAILED, "bookie: nothing was done"),
    "nothing": (b"\n", FAILED, "bookie: nothing was done"),
    "end of input": (b"\x04", FAILED, "bookie: nothing was done"),
    "Ctrl-C": (b"\x03", INTERRUPTED, ""),
}

COMMANDS = {
    "nuke": (["cluster", "nuke"], "Delete cluster ", "with 0 ledgers?"),
    "delete": (
        ["metadata", "delete", "-r", "/"],
        "Delete all 3 records at and below /",
        "bookie b1?",
    ),
    "put": (["metadata", "put", "/LAYOUT", "x"], "Overwrite /LAYOUT, ", "in the store?"),
}


def is_waiting(pid: int) -> bool:
    """Whether the main thread of a process sleeps."""
    return "\nState:\tS" in Path(f"/proc/{pid}/status").read_text(encoding="ascii")


def at_a_terminal(words: list[str], uri: str, answer: bytes) -> tuple[int, str, str]:
    """Type a command and, once it has asked, an answer: status, question, what it said then."""
    terminal, its_end = pty.openpty()
    # A session of its own, whose terminal this is: Ctrl-C there is a signal here.
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", sys.executable, "-m", "bookie", *words],
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        env=child_environment(os.environ) | {"BOOKIE_METADATA": uri},
    )
    os.close(its_end)
    try:
        asked = b""
        while b"[y/N]: " not in asked:
            asked += os.read(terminal, 4096)
        # Python takes no notice of a signal between its last look and the read that then waits.
        while not is_waiting(process.pid):
            pass
        os.write(terminal, answer)
        said = b""
        try:
            while piece := os.read(terminal, 4096):
                said += piece
        except OSError:
            pass  # what a terminal says when its last user is gone
        return process.wait(SECONDS_MAX), asked.decode(), said.decode()
    finally:
        os.close(terminal)
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("command", "answer"),
    [("nuke", answer) for answer in ANSWERS]
    + [(command, answer) for command in ("delete", "put") for answer in ("yes", "no", "Ctrl-C")],
)
async def test_a_question_at_a_terminal(command: str, answer: str, tmp_path: Path) -> None:
    """Only a yes changes anything."""
    words, begin, end = COMMANDS[command]
    typed, status, sentence = ANSWERS[answer]
    uri = f"local://{tmp_path}"
    async with open_store(uri) as store:
        await initialize_cluster(store)
        await store.put("/cookies/b1", b"")
        layout = await store.get("/LAYOUT")
    found, asked, said = at_a_terminal(words, uri, typed)
    assert found == status, said
    assert asked.startswith(begin)
    assert asked.rstrip().endswith(end + " [y/N]:")
    last = said.strip().splitlines()[-1:]
    if sentence:
        assert last == [sentence]
    async with open_store(uri) as store:
        left = await store.get("/LAYOUT")
    if status != DONE:
        assert left == layout
    elif command == "put":
        assert left is not None
        assert left.value == b"x"
    else:
        assert left is None
