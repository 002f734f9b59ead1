"""The root of the command line: what it costs to start, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie import __version__
from bookie.api import connect
from bookie.cli import app
from bookie.errors import ConfigurationError, NoSuchLedgerError
from tests.unit.ledger.real_cluster import real_cluster

HEAVY = {"grpc", "numpy", "aiohttp", "rich", "google.protobuf", "lmdb", "asyncio", "kazoo"}
HEAVY_FOR_METADATA = {"grpc", "numpy", "aiohttp", "rich", "structlog", "kazoo", "uvloop"}
"""Not needed to list what a local store holds."""


def modules_after(*words: str) -> set[str]:
    """The modules that a command line has imported when it ends."""
    script = (
        "import sys\n"
        "from bookie.cli.app import run\n"
        "run(sys.argv[1:])\n"
        "print('MODULES', *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    return set(done.stderr.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["doctor", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """Help answers at once because no heavy library is imported for it.

    Typer checks options with pydantic, and loads it when a group is named.
    """
    heavy = HEAVY if "doctor" in words else HEAVY | {"pydantic"}
    assert sorted(modules_after(*words) & heavy) == []


@pytest.mark.parametrize("words", ["ledger list", "cookie list", "cluster status", "log list"])
def test_a_list_imports_only_what_it_uses(words: str, tmp_path: Path) -> None:
    """Most commands read a few records of a store."""
    uri = f"local://{tmp_path}/metadata"
    assert app.run(["cluster", "init", "--metadata", uri]) == 0
    found = modules_after(*words.split(), "--metadata", uri) & HEAVY_FOR_METADATA
    assert sorted(found) == []


def test_root_help_imports_no_group() -> None:
    """The table of groups is written without importing one."""
    assert not [name for name in modules_after("--help") if name.startswith("bookie.cli.doctor")]


def test_help_names_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    """Each group has its line."""
    assert app.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (_, text) in app.GROUPS.items():
        assert f"{name} " in out
        assert text.split(",")[0] in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` prints the package's version and exits with 0."""
    assert app.run(["--version"]) == 0
    assert capsys.readouterr().out == f"bookie {__version__}\n"


def test_no_command_prints_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command there is help on standard error, and status 2."""
    assert app.run([]) == app.EXIT_MISUSED
    assert capsys.readouterr().err.startswith("Usage: bookie")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["legder"], "bookie: No such command 'legder'. Did you mean 'ledger'? (see "),
        (["--frob"], "bookie: No such option: --frob (see 'bookie --help')"),
        (["doctor", "--syncs", "many"], "bookie: Invalid value for '--syncs'"),
        (["doctor", "--output", "xml"], "bookie: Invalid value for '--output' / '-o'"),
        (
            ["ledger", "create", "--metadata", "memory://x", "--digest", "md5"],
            "bookie: Invalid value for '--digest': Value error, 'md5' is not one of 'crc32c', ",
        ),
        (["doctor", "a", "b", "c"], "bookie: Invalid value: give at most two directories"),
    ],
)
def test_misuse_is_one_sentence_and_status_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad usage prints one line that says what is wrong and where to read more."""
    assert app.run(words) == app.EXIT_MISUSED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(sentence)
    assert captured.err.count("\n") == 1


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command line whose command raises `error`."""

    def command(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "get_command", lambda _app: command)
    return app.run(["x"])


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (NoSuchLedgerError("ledger 7 does not exist"), 1, "bookie: ledger 7 does not exist\n"),
        (NoSuchLedgerError(), 1, "bookie: NoSuchLedgerError\n"),
        (ConfigurationError("port is\nnot a number"), 2, "bookie: port is not a number\n"),
        (FileNotFoundError(2, "No such file", "x.txt"), 1, "bookie: x.txt: No such file\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_one_sentence(
    error: BaseException,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every error of the tree ends as one line on standard error, never as a traceback."""
    monkeypatch.delenv(app.DEBUG_VARIABLE, raising=False)
    assert raising(error, monkeypatch) == status
    assert capsys.readouterr().err == line


def test_unexpected_error_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug is one sentence too, and names the variable that shows the traceback."""
    monkeypatch.delenv(app.DEBUG_VARIABLE, raising=False)
    assert raising(ZeroDivisionError("division by zero"), monkeypatch) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "ZeroDivisionError: division by zero" in err
    assert app.DEBUG_VARIABLE in err


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``BOOKIE_DEBUG=1`` prints the traceback above the sentence."""
    monkeypatch.setenv(app.DEBUG_VARIABLE, "1")
    assert raising(NoSuchLedgerError("gone"), monkeypatch) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("bookie: gone\n")


@pytest.fixture
def hangup() -> Iterator[None]:
    """The effect of SIGHUP, restored afterwards."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def hang_up() -> int:
    """A command whose terminal is closed: kernel and shell both say so."""
    try:
        signal.raise_signal(signal.SIGHUP)
    except KeyboardInterrupt:
        signal.raise_signal(signal.SIGHUP)
        return app.EXIT_INTERRUPTED
    return 0


@pytest.mark.parametrize(
    ("before", "status"), [(signal.SIG_DFL, app.EXIT_INTERRUPTED), (signal.SIG_IGN, 0)]
)
@pytest.mark.usefixtures("hangup")
def test_a_closed_terminal_is_ctrl_c(
    before: signal.Handlers, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command cleans up. Under ``nohup`` it goes on."""
    signal.signal(signal.SIGHUP, before)
    monkeypatch.setattr(app, "run", hang_up)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == status


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (errno.EIO, app.EXIT_BROKEN_PIPE, ""),
        (errno.ENOSPC, app.EXIT_FAILED, "bookie: No space left on device\n"),
    ],
)
@pytest.mark.usefixtures("hangup")
def test_output_that_cannot_be_written(
    number: int,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A terminal that is gone is nobody's news; a full disk is one sentence."""

    class Output:
        def flush(self) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(app, "run", lambda: 0)
    monkeypatch.setattr(app, "_abandon_stdout", lambda: None)
    with monkeypatch.context() as context:
        context.setattr(sys, "stdout", Output())
        with pytest.raises(SystemExit) as ended:
            app.main()
    assert (ended.value.code, capsys.readouterr().err) == (status, said)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("bookie led", ["ledger"]),
        ("bookie ledger re", ["read", "recover", "repair"]),
        ("bookie doctor --out", ["--output"]),
    ],
)
def test_shell_completion(words: str, completed: list[str]) -> None:
    """The shell completes groups, commands and options."""
    count = len(words.split())
    done = subprocess.run(
        [sys.executable, "-m", "bookie"],
        env={
            "_BOOKIE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == completed


def test_closed_pipe_is_not_an_error_message() -> None:
    """``bookie … | head`` ends quietly."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m bookie --help | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        *("ledger list", "ledger create", "ledger show 0", "log list", "log read x", "group list"),
        *("log create x", "cookie list", "cluster status", "cluster health", "cluster nuke --yes"),
        *("namespace list", "namespace create x", "metadata ls", "metadata put /x y --yes"),
        *("metadata export", "cluster settings list"),
    ],
)
def test_a_mistyped_directory_stays_what_it_is(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what makes a cluster makes its store."""
    uri = f"local://{tmp_path}/typo"
    assert app.run([*words.split(), "--metadata", uri]) in (app.EXIT_FAILED, app.EXIT_MISUSED)
    said = capsys.readouterr().err
    assert "holds no cluster, and no metadata store" in said
    assert "bookie cluster init" in said
    assert list(tmp_path.iterdir()) == []


def test_a_closed_standard_stream_is_one_sentence(tmp_path: Path) -> None:
    """Output is not lost silently, and no file of a store takes its place."""
    uri = f"local://{tmp_path}/metadata"
    assert app.run(["cluster", "init", "--metadata", uri]) == 0

    def told(words: str) -> tuple[int, str]:
        line = f"{sys.executable} -m bookie {words}"
        environment = {**os.environ, "BOOKIE_METADATA": uri}
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=False, env=environment
        )
        return done.returncode, done.stderr

    closed = "bookie: standard input or output is closed; open it, or send it to /dev/null\n"
    for words in ("ledger list", "ledger list --output json", "cluster status", "--version"):
        assert told(f"{words} >&-") == (app.EXIT_FAILED, closed), words
    assert told("metadata put /x - --file - --create <&-")[0] == app.EXIT_MISUSED
    assert told("metadata put /x --file - --create <&-") == (app.EXIT_FAILED, closed)
    assert told("ledger list 2>&-") == (0, "")


@pytest.mark.parametrize("words", [["list"], ["show", "0"], ["create"]])
def test_a_store_without_a_cluster_is_said_to_be_one(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped address must differ from a cluster that holds no ledgers."""
    uri = f"local://{tmp_path}/metadata"
    assert app.run(["ledger", *words, "--metadata", uri]) == app.EXIT_FAILED
    assert "holds no cluster" in capsys.readouterr().err


async def test_a_reader_of_the_output_may_end_first(tmp_path: Path) -> None:
    """As behind `head -1`: not a word, and the exit status that a shell shows for SIGPIPE."""
    uri = f"local://{tmp_path}/metadata"
    async with real_cluster(tmp_path / "bookies", uri=uri) as cluster, connect(cluster.uri) as bk:
        async with await bk.create_ledger() as writer:
            await writer.append_many([b"x" * 1000] * 5000)
        for words in ("read 0", "tail 0 --start 0", "read 0 --last 0"):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bookie", "ledger", *words.split(), "--metadata", uri),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            process.stdout._transport.close()  # type: ignore[attr-defined]
            _, said = await process.communicate()
            assert (process.returncode, said) == (app.EXIT_BROKEN_PIPE, b"")
