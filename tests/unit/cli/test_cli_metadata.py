"""``bookie metadata``, ``bookie cookie`` and ``bookie cluster health``, on a store of this test."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie.cluster.cookie import Cookie, CookieState, encode_cookie
from bookie.cluster.instance import initialize_cluster
from bookie.metadata.export import walk
from bookie.metadata.store import MetadataStore
from tests.unit.cli.cli_store import bookie, new_uri, on


def test_put_get_and_versions(uri: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A value comes back byte for byte. A condition that fails changes nothing."""
    assert bookie("metadata", "put", "/a/b", "größer", "--output", "json") == 0
    version = json.loads(capfdbinary.readouterr().out)["version"]
    assert bookie("metadata", "get", "/a/b") == 0
    assert capfdbinary.readouterr().out == "größer".encode()
    assert bookie("metadata", "put", "/a/b", "x", "--create") == 1
    assert capfdbinary.readouterr().err == b"bookie: /a/b exists\n"
    assert bookie("metadata", "put", "/a/b", "x", "--version", str(version + 1)) == 1
    assert b"was expected" in capfdbinary.readouterr().err
    assert bookie("metadata", "put", "/a/b", "y", "--version", str(version)) == 0
    capfdbinary.readouterr()
    assert bookie("metadata", "get", "/a/b") == 0
    assert capfdbinary.readouterr().out == b"y"


def test_a_value_from_a_file_and_from_standard_input(
    uri: str,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes that are no text are shown in base64 as JSON."""
    (tmp_path / "value").write_bytes(b"\xff\x00\n")
    assert bookie("metadata", "put", "/x", "--file", str(tmp_path / "value")) == 0
    capfdbinary.readouterr()
    assert bookie("metadata", "get", "/x") == 0
    assert capfdbinary.readouterr().out == b"\xff\x00\n"
    assert bookie("metadata", "get", "/x", "-o", "json") == 0
    assert json.loads(capfdbinary.readouterr().out)["value_base64"] == "/wAK"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"piped")))
    assert bookie("metadata", "put", "/x", "-f", "-") == 0
    capfdbinary.readouterr()
    assert bookie("metadata", "get", "/x") == 0
    assert capfdbinary.readouterr().out == b"piped"


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["get", "/nothing"], 1, "there is no record /nothing"),
        (["get", "nothing"], 1, "must start with a slash"),
        (["get", "/a/../b"], 1, "has an empty, '.' or '..' segment"),
        (["put", "/x"], 2, "give either a VALUE or a --file"),
        (["put", "/x", "v", "--file", "f"], 2, "give either a VALUE or a --file"),
        (["put", "/x", "v", "--create", "--version", "1"], 2, "contradict each other"),
        (["put", "/x", "--file", "/no/such/file"], 1, "/no/such/file: No such file"),
        (["delete", "/nothing", "--yes"], 1, "/nothing does not exist"),
        (["delete", "/nothing", "--recursive", "--yes"], 1, "nothing at or below /nothing"),
        (["delete", "/x", "-r", "--version", "1"], 2, "contradict each other"),
        (["rights", "--apply"], 1, "no access control by record; only ZooKeeper does"),
        (["rights", "--kind", "guest"], 2, "guest"),
        (["import", "/no/such/file"], 1, "/no/such/file: No such file"),
        (["migrate", "memory://a", "redis://b"], 2, "must begin with local:///"),
        (["ls", "--metadata", "zk://h:1"], 2, "zk://h:1"),
    ],
)
def test_bad_requests_are_one_sentence(
    words: list[str], status: int, sentence: str, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the key, the file or the option that is wrong."""
    assert bookie("metadata", *words) == status
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_rights_are_commands_for_etcd_and_a_table_for_others(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is opened for them: an operator may need them before there is a server."""
    etcd = "etcd://nowhere.invalid:2379/b/c"
    assert bookie("metadata", "rights", "--kind", "bookie", "--metadata", etcd) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "etcdctl role add b-c-bookie",
        "etcdctl role grant-permission b-c-bookie read /b/c/ /b/c0",
        "etcdctl role grant-permission b-c-bookie readwrite /b/c/ '/b/c/!'",
    ]
    assert f"{lines[1].rpartition(' read ')[0]} readwrite /b/c/cookies /b/c/cookies0" in lines
    assert bookie("metadata", "rights", "--output", "json") == 0
    rows = {row["part"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["/cookies"] == {
        "part": "/cookies",
        "reader": "r",
        "writer": "r",
        "bookie": "cdrw",
        "admin": "cdrwa",
    }


def test_ls_shows_one_level_or_all(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys that have children only end with a slash."""
    for key in ("/a", "/a/b", "/c/d/e"):
        on(uri, lambda store, key=key: store.put(key, b"xy"))  # type: ignore[misc]
    assert bookie("metadata", "ls", "-o", "json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["key"], row["bytes"]) for row in listed] == [("/a", 2), ("/c/", None)]
    assert bookie("metadata", "ls", "-r") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["KEY", "/a", "/a/b", "/c/d/e"]
    assert bookie("metadata", "ls", "/nothing") == 0
    assert capsys.readouterr().out == "there is nothing below /nothing\n"


def test_delete_one_and_all(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A key with children is refused unless all of it is meant."""
    for key in ("/a", "/a/b", "/a/b/c"):
        on(uri, lambda store, key=key: store.put(key, b""))  # type: ignore[misc]
    assert bookie("metadata", "delete", "/a", "--yes") == 1
    assert "/a has children" in capsys.readouterr().err
    assert bookie("metadata", "delete", "/a", "--recursive", "--yes") == 0
    assert bookie("metadata", "ls", "-r", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (["metadata", "delete", "/note"], "Delete /note, a record of 4 bytes?"),
        (["metadata", "delete", "/cookies/b1"], "Delete /cookies/b1, the cookie of bookie b1?"),
        (
            ["metadata", "delete", "-r", "/"],
            "Delete all 7 records at and below /, 1 of live sessions; among them how the cluster's"
            " ledgers lie in the store, the cluster's id, the cookie of bookie b1 and the metadata"
            " of a ledger?",
        ),
        (["metadata", "put", "/INSTANCEID", "x"], "Overwrite /INSTANCEID, the cluster's id?"),
        (["metadata", "put", "/LAYOUT", "x"], "Overwrite /LAYOUT, how the cluster's ledgers lie"),
        (["metadata", "put", "/ledgers/1", "x"], "Overwrite /ledgers/1, the metadata of a ledger?"),
        (["namespace", "delete", "orders"], "Delete the namespace orders?"),
        (["ledger", "delete", "7"], "Delete ledger 7 with all its entries?"),
        (["node", "gc", "b1", "--force"], "Let b1 delete every ledger that the cluster does not"),
        (["rebuild", "index"], "Make the index in /var/lib/bookie/ledgers again?"),
    ],
)
def test_nothing_is_destroyed_unasked(
    words: list[str], question: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal the exit status is that of misuse. The message asks what --yes answers."""
    uri = f"local://{tmp_path}"

    async def fill(store: MetadataStore) -> None:
        await initialize_cluster(store)
        for key in ("/note", "/cookies/b1", "/ledgers/1"):
            await store.put(key, b"note")
        await store.put("/config/namespaces/orders", b"")
        await store.put("/live", b"", ephemeral=True)
        options = [] if words[0] == "rebuild" else ["-m", uri]
        assert await asyncio.to_thread(bookie, *words, *options) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"bookie: without a terminal this needs --yes: {question}")
        assert said.err.count("\n") == 1
        assert len([record async for record in walk(store)]) == 7
        assert await store.exists("/note")

    on(uri, fill)


def test_what_destroys_nothing_is_not_asked_about(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """New records, other people's, and the same values again."""
    assert bookie("metadata", "put", "/cookies/b1", "x") == 0
    assert bookie("metadata", "put", "/cookies/b1", "x") == 0
    assert bookie("metadata", "put", "/note", "x") == 0
    assert bookie("metadata", "put", "/note", "y") == 0
    assert bookie("metadata", "put", "/cookies/b1", "y", "--create") == 1
    assert bookie("metadata", "put", "/cookies/b1", "y", "--yes") == 0
    assert bookie("node", "gc", "b1", "--suspend") == 1, "asked nothing, and found no bookie"
    file = tmp_path / "some.jsonl"
    other = new_uri()
    assert bookie("metadata", "export", str(file)) == 0
    assert bookie("metadata", "import", str(file), "--overwrite", "-m", other) == 0
    assert bookie("metadata", "migrate", uri, other, "--overwrite") == 0
    capsys.readouterr()
    for key in ("/cookies/b1", "/note"):
        assert bookie("metadata", "put", key, "z", "-m", other, "--yes") == 0
    capsys.readouterr()
    for words in (["import", str(file), "-m", other], ["migrate", uri, other]):
        assert bookie("metadata", *words, "--overwrite") == 2
        said = capsys.readouterr().err
        assert f"--yes: Give 2 records of {other} other values: /cookies/b1 and /note?" in said
        assert bookie("metadata", "get", "/note", "-m", other) == 0
        assert capsys.readouterr().out == "z"
    assert bookie("metadata", "import", str(file), "-m", other, "--overwrite", "--yes") == 0
    capsys.readouterr()
    assert bookie("metadata", "get", "/note", "-m", other) == 0
    assert capsys.readouterr().out == "y"


def test_watch_prints_what_others_do(tmp_path: Path) -> None:
    """A line each, at once, also into a pipe."""
    uri = f"local://{tmp_path}"
    on(uri, initialize_cluster)
    watching = subprocess.Popen(
        [sys.executable, "-m", "bookie", "metadata", "watch", "/a", "--events", "3", "-m", uri],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watching.stderr is not None
        assert watching.stdout is not None
        assert watching.stderr.readline() == "watching /a\n"
        on(uri, lambda store: store.put("/b", b""))
        on(uri, lambda store: store.put("/a/x", b""))
        assert watching.stdout.readline() == "created   /a/x\n"
        on(uri, lambda store: store.put("/a/x", b""))
        on(uri, lambda store: store.delete("/a/x"))
        assert watching.stdout.read() == "modified  /a/x\ndeleted   /a/x\n"
        assert watching.wait() == 0
    finally:
        watching.kill()
        watching.communicate()


def test_export_import_and_migrate(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cluster goes from one store to another by a file, and then directly."""
    on(uri, initialize_cluster)
    on(uri, lambda store: store.put("/ledgers/1", b"\x00"))
    file = tmp_path / "cluster.jsonl"
    assert bookie("metadata", "export", str(file)) == 0
    assert capsys.readouterr().err == "3 records, 0 of sessions left out\n"
    other = new_uri()
    assert bookie("metadata", "import", str(file), "-m", other, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"written": 3, "equal": 0}
    assert bookie("metadata", "migrate", uri, other, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["equal"] == 3
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]) + "\n")
    assert bookie("metadata", "import", str(file), "-m", new_uri()) == 1
    assert "was cut off" in capsys.readouterr().err


def test_an_export_is_appended_to_a_file(tmp_path: Path) -> None:
    """The shell has opened the file, whose earlier lines are not the export's."""
    uri, file = f"local://{tmp_path}/metadata", tmp_path / "kept.jsonl"
    on(uri, initialize_cluster)
    file.write_text("kept\n")
    with file.open("a") as kept:
        words = ("-m", "bookie", "metadata", "export", "-m", uri)
        subprocess.run([sys.executable, *words], stdout=kept, check=True, timeout=120)
    assert file.read_text().startswith("kept\n{")


def test_an_export_of_strange_keys_comes_back(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys may have what some take for the end of a line; and so may a file on Windows."""
    keys = ["/a\u2028b", "/a\u0085b", "/ü", "/a\x0bb", "/a\rb"]
    for key in keys:
        on(uri, lambda store, key=key: store.put(key, b"v"))  # type: ignore[misc]
    file = tmp_path / "cluster.jsonl"
    assert bookie("metadata", "export", str(file)) == 0
    other = new_uri()
    assert bookie("metadata", "import", str(file), "-m", other, "-o", "json") == 0
    assert bookie("metadata", "migrate", uri, other) == 0
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert bookie("metadata", "import", str(file), "-m", other) == 0
    capsys.readouterr()


def test_an_export_that_fails_leaves_no_file(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even a part of one; an older file of the name stays."""
    file = tmp_path / "cluster.jsonl"
    file.write_text("older")
    assert bookie("metadata", "export", str(file), "--key", "not/a/key") == 1
    assert file.read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.jsonl"]
    capsys.readouterr()


def test_bench_leaves_nothing(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Reads and writes as asked for."""
    words = ["--seconds", "0.2", "--callers", "3", "--reads", "75", "-o", "json"]
    assert bookie("metadata", "bench", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["operations"] > 0
    assert {"read_p50_ms", "write_p99_ms"} <= found.keys()
    assert bookie("metadata", "ls", "-r", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == []


def cookie_of(uri: str, journal: Path, ledgers: Path) -> Cookie:
    """A cookie of this cluster, standing in both directories."""
    found: list[str] = []

    async def initialize(store: MetadataStore) -> None:
        found.append(await initialize_cluster(store))

    on(uri, initialize)
    cookie = Cookie("b1", (str(journal),), (str(ledgers),), found[0], "unique", CookieState.READY)
    for directory in (journal, ledgers):
        directory.mkdir()
        (directory / "COOKIE").write_bytes(encode_cookie(cookie))
    return cookie


def test_cookies_are_restored_listed_and_deleted(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From all directories that the cookie names, or not at all."""
    journal, ledgers = tmp_path / "j", tmp_path / "l"
    cookie_of(uri, journal, ledgers)
    assert bookie("cookie", "restore", str(journal)) == 1
    assert f"also names {ledgers}: give all" in capsys.readouterr().err
    assert bookie("cookie", "restore", str(journal), str(ledgers)) == 0
    capsys.readouterr()
    assert bookie("cookie", "restore", str(journal), str(ledgers)) == 1
    assert "has a cookie already" in capsys.readouterr().err
    assert bookie("cookie", "list", "-o", "json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["bookie"], listed["state"]) == ("b1", "READY")
    assert bookie("cookie", "show", "b1", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["journal_dirs"] == [str(journal)]
    assert bookie("cookie", "delete", "b1", "--yes") == 0
    assert bookie("cookie", "delete", "b1", "--yes") == 1
    assert bookie("cookie", "show", "b1") == 1
    assert capsys.readouterr().err.count("bookie b1 has no cookie in this cluster") == 2
    assert bookie("cookie", "list") == 0
    assert "no bookie has joined" in capsys.readouterr().out


def test_a_cookie_of_another_cluster_is_not_restored(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would let a bookie in that has entries of others."""
    journal, ledgers = tmp_path / "j", tmp_path / "l"
    cookie_of(new_uri(), journal, ledgers)
    on(uri, initialize_cluster)
    assert bookie("cookie", "restore", str(journal), str(ledgers)) == 1
    assert "belongs to the cluster" in capsys.readouterr().err


async def _register(store: MetadataStore, *keys: str) -> None:
    for key in keys:
        await store.put(key, b"")


def test_health_sets_the_exit_status(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """1 as long as anything is wrong or unknown, and what that is."""
    assert bookie("cluster", "health") == 1
    assert "holds no cluster" in capsys.readouterr().err
    on(uri, initialize_cluster)
    on(uri, lambda store: _register(store, "/cookies/b1", "/available/readwrite/b1"))
    on(uri, lambda store: _register(store, "/cookies/b2", "/cookies/b3", "/available/readonly/b3"))
    assert bookie("cluster", "health", "-o", "json", "--timeout", "0.1") == 1
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["writable bookies"]["found"] == "1 of 3"
    assert checks["missing bookies"] == {
        "check": "missing bookies",
        "healthy": False,
        "count": 1,
        "found": "b2",
    }
    assert checks["read-only bookies"]["found"] == "b3"
    # No bookie serves in this test, so what bookies store is unknown.
    assert checks["bookies that do not answer"]["count"] == 2
    assert checks["ledgers in limbo"] == {
        "check": "ledgers in limbo",
        "healthy": False,
        "count": None,
        "found": "none; unknown on b1, b3",
    }
    assert checks["ledgers on absent bookies"]["healthy"]


def test_a_running_bookie_keeps_its_cookie(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would go on, and not start again."""
    on(uri, initialize_cluster)
    cookie = Cookie("b1", ("/j",), ("/l",), "i", "u", CookieState.READY)
    on(uri, lambda store: store.put("/cookies/b1", encode_cookie(cookie)))
    on(uri, lambda store: _register(store, "/available/readwrite/b1"))
    assert bookie("cookie", "delete", "b1", "--yes") == 1
    assert "bookie b1 is running; stop it first" in capsys.readouterr().err
