"""The commands of a user, typed against a cluster of real processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.cluster.directory import BookieDirectory
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Registration
from bookie.daemon.local.process import child_environment
from bookie.metadata.connect import open_store

SECONDS_MAX = 300.0


class Shell:
    """Types ``bookie …`` with the cluster's metadata store in the environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = child_environment(os.environ) | {
            "BOOKIE_METADATA": f"local://{directory}/cluster/metadata"
        }

    def run(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "bookie", *words],
            input=stdin,
            capture_output=True,
            env=self.environment,
            timeout=SECONDS_MAX,
            check=False,
        )

    def ok(self, *words: str, stdin: bytes = b"") -> bytes:
        """Run one command that must succeed; what it printed."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def refused(self, *words: str) -> str:
        """Run one command that must fail with status 1 and one sentence."""
        done = self.run(*words)
        assert done.returncode == 1, done
        sentence = done.stderr.decode()
        assert sentence.startswith("bookie: "), sentence
        assert sentence.count("\n") == 1, sentence
        return sentence.removeprefix("bookie: ").rstrip()

    def new_ledger(self, *words: str) -> str:
        """Create a ledger; its id."""
        return str(json.loads(self.ok("ledger", "create", "-o", "json", *words))["ledger_id"])


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster of three bookies for all tests of this file."""
    directory = tmp_path_factory.mktemp("commands")
    words = [sys.executable, "-m", "bookie", "local", "--data", str(directory / "cluster")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        try:
            for line in supervisor.stdout:
                if line.startswith("The cluster is up"):
                    break
            yield Shell(directory)
        finally:
            supervisor.send_signal(signal.SIGINT)
            supervisor.stdout.read()
    assert supervisor.returncode == 0


def test_lines_come_back(shell: Shell) -> None:
    """What was piped in as lines is printed as the same lines, in the same order."""
    ledger = shell.new_ledger()
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    summary = json.loads(shell.ok("ledger", "append", ledger, "-o", "json", stdin=lines))
    assert (summary["entries"], summary["last_entry_id"]) == (100_000, 99_999)
    assert shell.ok("ledger", "read", ledger) == lines
    assert shell.ok("ledger", "read", ledger, "--first", "7", "--last", "8") == b"7\n8\n"
    entry = json.loads(shell.ok("ledger", "read", ledger, "--first", "99999", "-o", "json"))
    assert entry == {"entry_id": 99_999, "payload": "99999"}


def test_bytes_come_back(shell: Shell) -> None:
    """A binary file in pieces is the same file again, from a file and from standard input."""
    content = os.urandom(3_000_001)
    (shell.directory / "file").write_bytes(content)
    for words, stdin in (([str(shell.directory / "file")], b""), ([], content)):
        ledger = shell.new_ledger()
        shell.ok("ledger", "append", ledger, *words, "--raw", stdin=stdin)
        back = shell.ok("ledger", "read", ledger, "--raw")
        assert hashlib.sha256(back).digest() == hashlib.sha256(content).digest()


def test_a_ledger_has_one_writer(shell: Shell) -> None:
    """The first append claims a created ledger and closes it; there is no second one."""
    ledger = shell.new_ledger()
    shell.ok("ledger", "append", ledger, stdin=b"one\n")
    assert "has its writer" in shell.refused("ledger", "append", ledger)
    shown = json.loads(shell.ok("ledger", "show", ledger, "-o", "json"))
    assert (shown["state"], shown["last_entry_id"], shown["bytes"]) == ("CLOSED", 0, 3)
    assert len(shown["fragments"][0]["bookies"]) == 3


def test_left_open_then_recovered(shell: Shell) -> None:
    """``--no-close`` leaves an open ledger that can be read, and that ``recover`` closes."""
    ledger = shell.new_ledger()
    shell.ok("ledger", "append", ledger, "--no-close", stdin=b"one\ntwo\n")
    assert shell.ok("ledger", "read", ledger) == b"one\ntwo\n"
    recovered = json.loads(shell.ok("ledger", "recover", ledger, "-o", "json"))
    assert (recovered["state"], recovered["last_entry_id"]) == ("CLOSED", 1)
    assert shell.ok("ledger", "read", ledger) == b"one\ntwo\n"


def test_an_interrupted_append_leaves_the_ledger_open(shell: Shell) -> None:
    """Ctrl-C ends a writer that waits for input at once, and says what to do with the ledger."""
    ledger = shell.new_ledger()
    with subprocess.Popen(
        [sys.executable, "-m", "bookie", "ledger", "append", ledger],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=shell.environment,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stderr is not None
        writer.stdin.write(b"one\n")
        writer.stdin.flush()
        while not shell.run("ledger", "read", ledger).stdout:
            pass
        writer.send_signal(signal.SIGINT)
        said = writer.stderr.read().decode()
        assert writer.wait(SECONDS_MAX) == 130
    assert said == f"bookie: ledger {ledger} is left open; 'bookie ledger recover' closes it\n"
    shell.ok("ledger", "recover", ledger)
    assert shell.ok("ledger", "read", ledger) == b"one\n"


def test_tail_follows_a_writer(shell: Shell) -> None:
    """Lines are printed while their writer still writes, and the tail ends with the ledger."""
    ledger = shell.new_ledger()
    words = [sys.executable, "-m", "bookie", "ledger"]
    with (
        subprocess.Popen(
            [*words, "append", ledger], stdin=subprocess.PIPE, env=shell.environment
        ) as writer,
        subprocess.Popen(
            [*words, "tail", ledger],
            stdout=subprocess.PIPE,
            env=shell.environment,
        ) as tail,
    ):
        assert writer.stdin is not None
        assert tail.stdout is not None
        for line in (b"first\n", b"second\n"):
            writer.stdin.write(line)
            writer.stdin.flush()
            assert tail.stdout.readline() == line
        writer.stdin.close()
        assert tail.stdout.read() == b""
    assert (writer.returncode, tail.returncode) == (0, 0)


def test_list_status_and_delete(shell: Shell) -> None:
    """A ledger is listed until it is deleted; a deleted one does not exist."""
    ledger = shell.new_ledger()

    def listed() -> set[str]:
        rows = json.loads(shell.ok("ledger", "list", "-o", "json"))
        return {str(row["ledger_id"]) for row in rows}

    assert ledger in listed()
    status = json.loads(shell.ok("cluster", "status", "-o", "json"))
    assert (status["writable_bookies"], status["ledgers"]) == (3, len(listed()))
    assert json.loads(shell.ok("ledger", "delete", ledger, "-y", "-o", "json"))["deleted"] is True
    assert ledger not in listed()
    assert shell.refused("ledger", "show", ledger) == f"ledger {ledger} does not exist"
    assert shell.refused("ledger", "read", ledger) == f"ledger {ledger} does not exist"
    assert shell.refused("ledger", "delete", ledger, "--yes") == f"ledger {ledger} does not exist"


def test_password(shell: Shell) -> None:
    """A ledger with a password is read and recovered only with it; it is never shown."""
    (shell.directory / "password").write_text("secret\n", encoding="utf-8")
    option = ("--password-file", str(shell.directory / "password"))
    ledger = shell.new_ledger(*option)
    assert "password" in shell.refused("ledger", "append", ledger)
    shell.ok("ledger", "append", ledger, *option, stdin=b"one\n")
    assert "password" in shell.refused("ledger", "read", ledger)
    assert shell.ok("ledger", "read", ledger, *option) == b"one\n"
    shown = shell.ok("ledger", "show", ledger, "-o", "json").decode()
    assert json.loads(shown)["password"] is True
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["read", "LEDGER", "--last", "7"], "is not confirmed"),
        (["create", "--ensemble", "7"], "7"),
        (["create", "--ack-quorum", "4"], "4"),
        (["append", "LEDGER", "/nonexistent"], "/nonexistent: No such file or directory"),
    ],
)
def test_refusals_are_one_sentence(words: list[str], sentence: str, shell: Shell) -> None:
    """What cannot be done is said in one sentence, with status 1."""
    ledger = shell.new_ledger()
    words = [ledger if word == "LEDGER" else word for word in words]
    assert sentence in shell.refused("ledger", *words)


def test_bench(shell: Shell) -> None:
    """A short load prints throughput and latencies, and leaves no ledger behind."""
    before = shell.ok("ledger", "list", "-o", "json")
    words = ["--seconds", "0.3", "--in-flight", "50", "-o", "json"]
    written = json.loads(shell.ok("bench", "write", *words))
    assert written["entries"] > 0
    assert 0 < written["p50_ms"] <= written["p99_ms"] <= written["max_ms"]
    batched = json.loads(shell.ok("bench", "write", *words, "--batch", "10", "--ledgers", "2"))
    assert batched["entries"] % 10 == 0
    read = json.loads(shell.ok("bench", "read", "--entries", "2000", "-o", "json"))
    assert (read["entries"], read["bytes"]) == (6000, 6000 * 1024)
    assert shell.ok("ledger", "list", "-o", "json") == before


def test_a_bookie_deletes_what_was_deleted(shell: Shell) -> None:
    """A forced collection and a compaction are taken; suspended, nothing more goes."""
    bookies = json.loads(shell.ok("cluster", "bookies", "-o", "json"))
    bookie = str(bookies[0]["bookie"])
    ledger = shell.new_ledger()
    shell.ok("ledger", "append", ledger, stdin=b"one\n" * 1000)
    shell.ok("ledger", "delete", ledger, "--yes")
    words = ("node", "gc", bookie, "-o", "json")
    assert json.loads(shell.ok(*words, "--force", "--yes"))["garbage_suspended"] is False
    status = json.loads(shell.ok("node", "info", bookie, "-o", "json"))
    for _ in range(100):
        if status["garbage_deleted_ledgers"]:
            break
        status = json.loads(shell.ok("node", "info", bookie, "-o", "json"))
    assert status["garbage_deleted_ledgers"]
    assert status["garbage_outcome"] == "done"
    assert json.loads(shell.ok("node", "compact", bookie, "-o", "json"))["kept_files"] == 0
    assert json.loads(shell.ok(*words, "--suspend"))["garbage_suspended"] is True
    assert json.loads(shell.ok(*words, "--resume"))["garbage_suspended"] is False
    assert shell.run("node", "gc", bookie, "--force", "--resume").returncode == 2
    assert shell.run("node", "gc", bookie, "--force", "--confirm-store").returncode == 2
    assert shell.run("node", "gc", bookie, ledger).returncode == 2
    assert "does not wait" in shell.refused("node", "gc", bookie, ledger, "--undelete")
    assert "garbage waiting ledgers" in shell.ok("node", "info", bookie).decode()


@pytest.mark.parametrize("words", ["info", "readonly ID on", "gc ID", "compact", "check", "scrub"])
def test_a_command_for_another_machines_bookie_is_refused(shell: Shell, words: str) -> None:
    """Both bookies listen on loopback; the one of this machine is not the one that is meant."""
    command, *rest = words.split()
    here, uri = "bookie-1", shell.environment["BOOKIE_METADATA"]

    async def on_registered() -> str:
        async with open_store(uri) as store, BookieDirectory(store) as directory:
            (http,) = (one for one in directory.all()[here].endpoints if one.name == "http")
            async with BookieRegistration(store, Registration("elsewhere", (http,))):
                arguments = [word.replace("ID", "elsewhere") for word in rest] or ["elsewhere"]
                return await asyncio.to_thread(shell.refused, "node", command, *arguments)

    sentence = asyncio.run(on_registered())
    assert f"this is bookie {here}, and the request is for bookie elsewhere" in sentence
    assert json.loads(shell.ok("node", "info", here, "-o", "json"))["read_only"] is False


def test_a_ledger_gets_another_write_quorum(shell: Shell) -> None:
    """Up and down; what cannot be is refused in one sentence."""
    words = ("--ensemble", "2", "--write-quorum", "2", "--ack-quorum", "2")
    ledger = shell.new_ledger(*words)
    shell.ok("ledger", "append", ledger, "--no-close", stdin=b"one\ntwo\n")
    change = ("ledger", "set-quorum", ledger, "--write-quorum")
    assert f"ledger {ledger} is not closed" in shell.refused(*change, "3")
    shell.ok("ledger", "recover", ledger)
    done = json.loads(shell.ok(*change, "3", "-o", "json"))
    assert done == {
        "ledger_id": int(ledger),
        "former_write_quorum": 2,
        "write_quorum": 3,
        "former_ensemble": 2,
        "ensemble": 3,
        "entries": 2,
        "bytes": done["bytes"],
    }
    shown = json.loads(shell.ok("ledger", "show", ledger, "-o", "json"))
    assert len(shown["fragments"][0]["bookies"]) == 3
    assert shell.ok("ledger", "read", ledger) == b"one\ntwo\n"
    assert json.loads(shell.ok(*change, "2", "-o", "json"))["write_quorum"] == 2
    assert shell.ok("ledger", "read", ledger) == b"one\ntwo\n"
    assert "its ack quorum is 2" in shell.refused(*change, "1")
    assert "3 are writable" in shell.refused(*change, "4")
    assert "does not exist" in shell.refused(
        "ledger", "set-quorum", "999999", "--write-quorum", "3"
    )
    assert shell.run(*change, "0").returncode == 2
    assert shell.run("ledger", "set-quorum", ledger).returncode == 2


def test_a_read_only_switch_that_persists(shell: Shell) -> None:
    """The bookie says so, and `off` ends it. The next start is the subject of unit tests."""
    for words, persists in ((["on", "--persist"], True), (["on"], True), (["off"], False)):
        shell.ok("node", "readonly", "bookie-1", *words)
        found = json.loads(shell.ok("node", "info", "bookie-1", "-o", "json"))
        assert found["read_only"] is (words[0] == "on")
        assert found["read_only_persists"] is persists
    assert shell.run("node", "readonly", "bookie-1", "off", "--persist").returncode == 2


def test_the_python_of_the_readme_runs(shell: Shell) -> None:
    """As it is printed, with the variable that the tour exports."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        capture_output=True,
        text=True,
        env=shell.environment,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0 b'durable when this returns'",
        "1 b'many'",
        "2 b'in one wait'",
        "0 b'a record'",
    ]


def test_labels_say_where_copies_stand(shell: Shell) -> None:
    """The policy and labels are the cluster's; both count for the next command."""
    names = [one["bookie"] for one in json.loads(shell.ok("cluster", "bookies", "-o", "json"))]
    homes = dict(zip(names, ("r1", "r1", "r2"), strict=True))

    on_all = shell.new_ledger()

    def label(racks: dict[str, str]) -> None:
        for name, rack in racks.items():
            shell.ok("node", "label", name, f"rack={rack}")
        # Bookies register their labels within a second; the check goes by what is registered.
        found: dict[str, str] = {}
        while found != racks:
            checked = shell.run("ledger", "check-placement", on_all, "-o", "json")
            (fragment,) = json.loads(checked.stdout)
            found = dict(zip(fragment["bookies"], fragment["domains"], strict=True))

    shell.ok("cluster", "settings", "set", "placement.policy=rack")
    try:
        label(homes)
        two = ("-E", "2", "-W", "2", "-A", "2")
        ledgers = [shell.new_ledger(*two) for _ in range(4)]
        checked = json.loads(shell.ok("ledger", "check-placement", *ledgers, "-o", "json"))
        assert [sorted(fragment["domains"]) for fragment in checked] == [["r1", "r2"]] * 4
        label(dict.fromkeys(names, "r3"))
        assert shell.run("ledger", "check-placement", *ledgers).returncode == 1
        shell.ok("cluster", "settings", "set", "placement.enforce=true")
        refusal = shell.refused("ledger", "create", *two)
        assert refusal.startswith("every write set must span 2 racks"), refusal
    finally:
        shell.ok("cluster", "settings", "unset", "placement.policy")
        shell.run("cluster", "settings", "unset", "placement.enforce")
    shell.ok("ledger", "check-placement", *ledgers)
