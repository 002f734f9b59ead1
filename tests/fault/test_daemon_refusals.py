"""A daemon that must not start says why in one sentence; its exit status says whose fault it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from bookie.cluster.instance import initialize_cluster, read_status
from bookie.metadata.connect import open_store
from bookie.node.engine.format.blocks import FileHeader, decode_file_header
from tests.fault.daemon_process import Home, new_home, refused, serving

FAILED, MISCONFIGURED = 1, 78


@pytest.fixture
async def used(home: Home) -> Home:
    """A bookie that has run and was stopped in order."""
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0
    return home


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("listen", "prot", 1, "unknown setting listen.prot; did you mean port?"),
        ("listen", "port", 70000, "listen.port"),
        ("metadata", "uri", "mysql://x", "must begin with local:///, memory://"),
        ("metadata", "uri", "memory://x", "memory://x is seen by one process only; bookies need"),
        ("bookie", "id", "", "bookie.id must be set"),
        ("bookie", "id", "a/b", "bookie.id"),
        ("listen", "host", "0.0.0.0", "or security.allow_plaintext = true on a network that you"),
        ("http", "host", "::", "http.host = :: is reached from other machines"),
        ("security", "ca_file", "/ca.pem", "security.certificate_file is not"),
        ("security", "certificate_file", "/b1.pem", "certificate_file and key_file go together"),
    ],
)
async def test_wrong_setting(section: str, key: str, value: object, words: str, home: Home) -> None:
    """An unknown, malformed or impossible setting: status 78, and the setting is named."""
    home.sections.setdefault(section, {})[key] = value
    status, sentence = await refused(home.write())
    assert (status, words in sentence) == (MISCONFIGURED, True), sentence


async def test_another_store_in_the_shell(home: Home) -> None:
    """A file and BOOKIE_METADATA that differ: the bookie joins neither cluster."""
    other = f"local://{home.path}/other"
    async with open_store(other) as store:
        await initialize_cluster(store)
    path = home.write()
    status, sentence = await refused(path, BOOKIE_METADATA=other)
    assert status == MISCONFIGURED
    assert sentence.startswith(f"BOOKIE_METADATA and metadata.uri in {path} name different stores")
    await assert_never_joined(home)


async def test_no_configuration_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    status, sentence = await refused(tmp_path / "none.toml")
    assert status == MISCONFIGURED
    assert sentence == f"cannot read {tmp_path}/none.toml: No such file or directory"


async def test_directory_below_a_file(home: Home) -> None:
    """A directory that cannot be made is the configuration's fault."""
    (home.path / "file").touch()
    home.sections["storage"]["ledgers_dir"] = str(home.path / "file" / "ledgers")
    status, sentence = await refused(home.write())
    assert status == MISCONFIGURED
    assert sentence.startswith(f"cannot use the directory {home.path}/file/ledgers: ")


async def assert_never_joined(home: Home) -> None:
    """The cluster does not know the bookie, which would be missing for ever."""
    async with open_store(home.metadata_uri) as store:
        assert (await read_status(store)).known == ()
    for directory in (home.journal, home.ledgers):
        assert not (directory / "COOKIE").exists()


@pytest.mark.parametrize("key", ["journal_dir", "ledgers_dir"])
@pytest.mark.parametrize("parent", ["/proc", "/sys"])
async def test_directory_that_cannot_be_made_now(parent: str, key: str, home: Home) -> None:
    """A mount or a permission may come later: systemd tries again, and nothing was stamped."""
    home.sections["storage"][key] = f"{parent}/bookie"
    status, sentence = await refused(home.write())
    assert status == FAILED
    assert sentence.startswith(f"cannot use the directory {parent}/bookie: ")
    await assert_never_joined(home)


@pytest.mark.parametrize("key", ["journal_dir", "ledgers_dir"])
async def test_file_in_place_of_a_directory(key: str, home: Home) -> None:
    """A later start is refused, too. A bookie that never ran leaves the cluster unchanged."""
    (home.path / "file").touch()
    home.sections["storage"][key] = f"{home.path}/file"
    status, sentence = await refused(home.write())
    assert status == MISCONFIGURED
    assert sentence.startswith(f"cannot use the directory {home.path}/file: ")
    await assert_never_joined(home)


async def test_one_directory_for_both(home: Home) -> None:
    """By a link: the reason is that they are one, and no other process."""
    home.journal.mkdir()
    home.ledgers.symlink_to(home.journal)
    status, sentence = await refused(home.write())
    assert status == MISCONFIGURED
    assert sentence == (
        "journal_dir and ledgers_dir must be two directories:"
        f" {home.journal} and {home.ledgers} are both {home.journal}"
    )
    await assert_never_joined(home)


@pytest.mark.parametrize("section", ["listen", "http"])
async def test_port_taken(section: str, home: Home) -> None:
    """A port may be free later, so that systemd tries again; the bookie never joined."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = home.sections[section]["port"] = taken.getsockname()[1]
        status, sentence = await refused(home.write())
    assert status == FAILED
    assert f"127.0.0.1:{port}: address already in use" in sentence.lower()
    await assert_never_joined(home)


async def test_port_of_another_bookie(home: Home, tmp_path: Path) -> None:
    """Two bookies never share a port: the second one ends, and only the first one is known."""
    second = tmp_path / "second"
    second.mkdir()
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        other = Home(second, {name: dict(values) for name, values in home.sections.items()})
        other.sections["bookie"]["id"] = "b2"
        other.sections["http"]["port"] = 0
        other.sections["storage"] = {
            "journal_dir": f"{second}/journal",
            "ledgers_dir": f"{second}/ledgers",
        }
        status, sentence = await refused(other.write())
        assert status == FAILED
        assert "address already in use" in sentence
        async with open_store(home.metadata_uri) as store:
            assert (await read_status(store)).known == ("b1",)


async def test_optimized_interpreter(home: Home) -> None:
    """Under ``python -O`` the checks that protect data are gone."""
    status, sentence = await refused(home.write(), "-O")
    assert (status, "-O" in sentence) == (MISCONFIGURED, True)


async def test_unknown_failpoint(home: Home) -> None:
    """A crash test must fail if its failpoint does not exist."""
    status, sentence = await refused(home.write(), BOOKIE_FAILPOINT="journal.before_lunch")
    assert status == MISCONFIGURED
    assert "there is no failpoint named 'journal.before_lunch'" in sentence


async def test_no_cluster(tmp_path: Path) -> None:
    """A metadata store without a cluster: the sentence says how to make one."""
    home = await new_home(tmp_path)
    home.sections["metadata"]["uri"] = f"local://{tmp_path}/empty"
    status, sentence = await refused(home.write())
    assert status == FAILED
    assert "bookie cluster init" in sentence


async def test_second_process_on_a_directory(home: Home) -> None:
    """The directories belong to the process that runs."""
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        home.sections["listen"]["port"] = home.sections["http"]["port"] = 0
        status, sentence = await refused(home.write())
    assert status == FAILED
    assert sentence == f"another process uses {home.journal}; stop it first"


async def test_second_bookie_with_the_same_id(used: Home) -> None:
    """New directories do not make another bookie out of an id that is known."""
    used.sections["storage"] = {
        "journal_dir": f"{used.path}/other/journal",
        "ledgers_dir": f"{used.path}/other/ledgers",
    }
    status, sentence = await refused(used.write())
    assert status == FAILED
    assert "cookie" in sentence


@pytest.mark.parametrize("name", ["journal", "ledgers"])
async def test_missing_cookie(name: str, used: Home) -> None:
    """A directory that lost its cookie may have lost its data, too. It is never stamped again."""
    (used.path / name / "COOKIE").unlink()
    status, sentence = await refused(used.write())
    assert status == FAILED
    assert "cookie" in sentence
    assert not (used.path / name / "COOKIE").exists()


@pytest.mark.parametrize("name", ["journal", "ledgers"])
async def test_emptied_directory(name: str, used: Home) -> None:
    """An exchanged disk: the directory is there, and empty."""
    shutil.rmtree(used.path / name)
    (used.path / name).mkdir()
    status, sentence = await refused(used.write())
    assert status == FAILED
    assert "cookie" in sentence


async def test_foreign_directories(used: Home) -> None:
    """Directories of another bookie are not taken over."""
    used.sections["bookie"]["id"] = "b2"
    status, sentence = await refused(used.write())
    assert status == FAILED
    assert "cookie" in sentence or "b1" in sentence


async def test_directories_of_another_cluster(used: Home) -> None:
    """A cluster that was made anew does not know the data of the old one."""
    uri = used.sections["metadata"]["uri"] = f"local://{used.path}/anew"
    async with open_store(uri) as store:
        await initialize_cluster(store)
    status, sentence = await refused(used.write())
    assert status == FAILED
    assert "cookie" in sentence


async def test_newer_cookie(used: Home) -> None:
    """A cookie of a newer version is not guessed at."""
    path = used.journal / "COOKIE"
    path.write_text(path.read_text().replace("bookie-cookie 1", "bookie-cookie 2"))
    status, sentence = await refused(used.write())
    assert status == FAILED
    assert "newer version" in sentence


async def test_newer_journal(used: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal file of a newer version stops the start; it is not read as damage."""
    path = max(used.journal.glob("*.journal"))
    data = bytearray(path.read_bytes())
    header = decode_file_header(data)
    monkeypatch.setattr("bookie.node.engine.format.blocks.FORMAT_VERSION", 2)
    newer = FileHeader(header.kind, header.number, header.nonce, header.alignment).encode()
    path.write_bytes(newer + data[len(newer) :])
    status, sentence = await refused(used.write())
    assert status == FAILED
    assert "newer version" in sentence


async def test_refusals_are_logged_as_json(home: Home) -> None:
    """Every line on standard error is a JSON event; those of the daemon have the bookie's id."""
    home.sections["listen"]["port"] = home.sections["http"]["port"]
    async with serving(home.write()) as daemon:
        await daemon.refusal()
        events = [json.loads(line) for line in daemon.lines]
    assert len(events) > 1
    assert all(event["bookie"] == "b1" for event in events)


@pytest.mark.parametrize("by_file", [False, True])
async def test_refusals_for_people(by_file: bool, home: Home) -> None:
    """With the console format the last line is a sentence, even if the settings are wrong."""
    home.sections["listen"]["prot"] = 1
    variables = {}
    if by_file:
        home.sections["log"] = {"format": "console"}
    else:
        variables["BOOKIE_LOG__FORMAT"] = "console"
    path = home.write()
    async with serving(path, **variables) as daemon:
        assert await daemon.end() == MISCONFIGURED
    hint = "unknown setting listen.prot; did you mean port?"
    assert daemon.lines == [f"bookie: {path}: {hint}"]


async def test_a_bug_is_one_line(home: Home) -> None:
    """What nobody expected is JSON as well, with its traceback."""
    (home.path / "sitecustomize.py").write_text(
        "import resource\nresource.setrlimit = resource.getrlimit = None\n", encoding="utf-8"
    )
    python_path = f"{home.path}:{os.environ.get('PYTHONPATH', '')}"
    async with serving(home.write(), PYTHONPATH=python_path) as daemon:
        status, sentence = await daemon.refusal()
    assert status == FAILED
    assert sentence.startswith("internal error, TypeError: 'NoneType' object is not callable")
    assert "Traceback" in json.loads(daemon.lines[-1])["exception"]
