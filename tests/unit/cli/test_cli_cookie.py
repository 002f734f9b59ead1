"""``bookie cookie`` on a store of this test: what depends on a bookie, and which state it has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.cli import app
from bookie.cli import cookie as commands
from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster, read_instance_id
from bookie.cluster.layout import FLAT
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.store import MetadataStore
from tests.unit.cli.cli_store import on

TRIO = ("b1", "b2", "b3")


@pytest.fixture
def uri(uri: str) -> str:
    """A cluster in a store that the environment names."""
    on(uri, initialize_cluster)
    return uri


def bookie(*words: str) -> int:
    return app.run(["cookie", *words])


def instance_of(uri: str) -> str:
    """The cluster's id."""

    async def read(store: MetadataStore) -> str:
        return await read_instance_id(store)

    return on(uri, read)


def cookie_of(uri: str, name: str = "b1", **fields: object) -> Cookie:
    """The cookie of a bookie of the cluster."""
    cookie = Cookie(
        bookie_id=name,
        journal_dirs=(f"/{name}/j",),
        ledger_dirs=(f"/{name}/l",),
        instance_id=instance_of(uri),
        unique_id=f"unique {name}",
        state=CookieState.READY,
        incarnation=f"incarnation {name}",
        state_number=7,
    )
    return replace(cookie, **fields)  # type: ignore[arg-type]


def join(uri: str, *cookies: Cookie) -> None:
    """Write the cookies, whatever was there."""

    async def write(store: MetadataStore) -> None:
        for cookie in cookies:
            await store.put(f"/cookies/{cookie.bookie_id}", encode_cookie(cookie))

    on(uri, write)


def recorded(uri: str, name: str = "b1") -> Cookie | None:
    """The cookie in the metadata store."""

    async def read(store: MetadataStore) -> Cookie | None:
        found = await CookieManager(store).read(name)
        return found.value if found else None

    return on(uri, read)


def add_ledgers(
    uri: str, count: int, ensemble: Sequence[str], *, last: int | None = 9, ack: int = 2
) -> None:
    """Ledgers on one ensemble, closed at `last`; open if that is None."""

    async def create(store: MetadataStore) -> None:
        manager = LedgerManager(store)
        ids = [ledger_id async for ledger_id in manager.list_ids()]
        size = len(ensemble)
        for ledger_id in range(len(ids), len(ids) + count):
            fragments = (Fragment(0, tuple(ensemble)),)
            ledger = LedgerMetadata(ledger_id, size, size, ack, LedgerState.OPEN, fragments)
            await manager.create(ledger if last is None else ledger.closed(last, 10))

    on(uri, create)


Said = pytest.CaptureFixture[str]


def test_a_bookie_whose_ledgers_have_other_copies_is_deleted(uri: str, capsys: Said) -> None:
    """The counts are shown; ledgers of other bookies do not count."""
    join(uri, *(cookie_of(uri, name) for name in (*TRIO, "b4")))
    add_ledgers(uri, 2, TRIO, last=None)
    add_ledgers(uri, 5, TRIO)
    add_ledgers(uri, 3, ("b2", "b3", "b4"))
    assert bookie("delete", "b1", "--yes", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "bookie": "b1",
        "ledgers": 7,
        "first_ledgers": [0, 1, 2, 3, 4],
        "closed": 5,
        "not_closed": 2,
        "last_copies": 0,
        "first_last_copies": [],
        "unreadable": 0,
        "first_unreadable": [],
        "deleted": True,
    }
    assert recorded(uri) is None


def lost_by(uri: str, why: str) -> None:
    """Let the copies of b2 not count."""
    match why:
        case "in doubt":
            join(uri, cookie_of(uri, "b2", is_in_doubt=True))
        case "new":
            join(uri, cookie_of(uri, "b2", state=CookieState.NEW))
        case _:
            assert bookie("delete", "b2", "--yes") == 0


@pytest.mark.parametrize("why", ["in doubt", "new", "deleted"])
def test_the_last_copies_are_kept(uri: str, why: str, capsys: Said) -> None:
    """Two of three are lost where two acknowledge: only --force destroys what may be left."""
    join(uri, *(cookie_of(uri, name) for name in TRIO))
    add_ledgers(uri, 2, TRIO)
    add_ledgers(uri, 1, TRIO, last=-1)
    add_ledgers(uri, 1, TRIO, last=None)
    add_ledgers(uri, 1, TRIO, ack=3)
    lost_by(uri, why)
    capsys.readouterr()
    assert bookie("delete", "b1", "--yes", "-o", "json") == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["ledgers"], found["closed"], found["not_closed"]) == (5, 4, 1)
    assert (found["last_copies"], found["first_last_copies"]) == (3, [0, 1, 3])
    assert not found["deleted"]
    assert "bookie b1 may have the last copies of entries of 3 ledgers (0, 1, 3): " in said.err
    assert "give --force to lose" in said.err
    assert said.err.count("\n") == 1
    assert recorded(uri) is not None
    assert bookie("delete", "b1", "--yes", "--force") == 0
    assert recorded(uri) is None


def test_an_unreadable_ledger_may_have_last_copies(uri: str, capsys: Said) -> None:
    """Nobody can tell. --force deletes all the same."""
    join(uri, *(cookie_of(uri, name) for name in TRIO))
    add_ledgers(uri, 3, TRIO)
    on(uri, lambda store: store.put(FLAT.key(1), b"damaged"))
    assert bookie("delete", "b1", "--yes", "-o", "json") == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["ledgers"], found["last_copies"]) == (2, 0)
    assert (found["unreadable"], found["first_unreadable"]) == (1, [1])
    assert "1 ledgers whose metadata cannot be read (1): repair the other" in said.err
    assert recorded(uri) is not None
    assert bookie("delete", "b1", "--yes", "--force") == 0
    assert recorded(uri) is None


def test_nothing_is_deleted_unasked(uri: str, capsys: Said) -> None:
    """The question says what depends on the bookie."""
    join(uri, *(cookie_of(uri, name) for name in TRIO))
    assert bookie("delete", "b1") == 2
    question = "bookie: without a terminal this needs --yes: Forget that bookie b1 ever stored any"
    said = capsys.readouterr()
    assert said.err == f"{question}thing? No ledger names it.\n"
    add_ledgers(uri, 7, TRIO)
    add_ledgers(uri, 1, TRIO, last=None, ack=1)
    assert bookie("delete", "b1", "--force") == 2
    said = capsys.readouterr()
    assert said.err == (
        f"{question}thing? 8 ledgers name it (0, 1, 2, 3, 4 and 3 more), 1 of them not closed. "
        "Acknowledged entries of 1 of them may be lost for ever (7).\n"
    )
    assert said.out == ""
    assert recorded(uri) is not None


CHANGES: dict[str, tuple[Callable[[str], None], str]] = {
    "it ran": (
        lambda uri: join(uri, cookie_of(uri, state_number=8)),
        "the cookie of bookie b1 changed meanwhile: look again",
    ),
    "another is deleted": (
        lambda uri: on(uri, lambda store: store.delete("/cookies/b2")),
        "bookie b2 was deleted or came into doubt meanwhile: look again",
    ),
    "another comes into doubt": (
        lambda uri: join(uri, cookie_of(uri, "b3", is_in_doubt=True)),
        "bookie b3 was deleted or came into doubt meanwhile: look again",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_while_the_question_stood_is_seen(
    uri: str, change: str, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    """The answer was to another question."""
    join(uri, *(cookie_of(uri, name) for name in TRIO))
    act, sentence = CHANGES[change]
    monkeypatch.setattr(commands, "confirm", lambda question, *, yes: act(uri))
    assert bookie("delete", "b1") == 1
    assert sentence in capsys.readouterr().err
    assert recorded(uri) is not None


def test_a_damaged_cookie_of_another_bookie_is_named(uri: str, capsys: Said) -> None:
    """Nobody can say whether its copies count."""
    join(uri, cookie_of(uri))
    on(uri, lambda store: store.put("/cookies/b2", b"x"))
    assert bookie("delete", "b1", "--yes") == 1
    assert "the cookie of bookie b2: not a bookie cookie" in capsys.readouterr().err


def test_list_and_show_say_which_state(uri: str, capsys: Said) -> None:
    """Incarnation, number and doubt; an older cookie has none of them."""
    join(uri, cookie_of(uri, is_in_doubt=True))
    join(uri, cookie_of(uri, "b2", incarnation="", state_number=0))
    assert bookie("list", "-o", "json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["incarnation"], row["state_number"], row["in_doubt"]) for row in listed] == [
        ("incarnation b1", 7, True),
        ("", 0, False),
    ]
    assert bookie("show", "b1", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["incarnation"], shown["state_number"]) == ("incarnation b1", 7)
    assert shown["in_doubt"]


def directories_of(uri: str, path: Path, **of_ledgers: object) -> tuple[Cookie, list[str]]:
    """A journal and ledgers whose cookies are equal, but for what is said of the latter."""
    paths = [path / "journal", path / "ledgers"]
    cookie = cookie_of(uri, journal_dirs=(str(paths[0]),), ledger_dirs=(str(paths[1]),))
    for directory, stamped in zip(
        paths,
        (cookie, replace(cookie, **of_ledgers)),  # type: ignore[arg-type]
        strict=True,
    ):
        directory.mkdir()
        (directory / "COOKIE").write_bytes(encode_cookie(stamped))
    return cookie, [str(directory) for directory in paths]


def test_inspect_shows_the_state_of_each_directory(uri: str, tmp_path: Path, capsys: Said) -> None:
    """Also where it is not settled."""
    _, paths = directories_of(uri, tmp_path, state_number=8, is_settled=False)
    assert app.run(["inspect", "cookie", *paths, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["state_number"], row["settled"], row["in_doubt"]) for row in rows] == [
        (7, True, False),
        (8, False, False),
    ]
    assert {row["incarnation"] for row in rows} == {"incarnation b1"}


def test_one_state_is_restored_in_doubt(uri: str, tmp_path: Path, capsys: Said) -> None:
    """The number is that of the directories, which may be an older copy.

    The incarnation is not: since then another one may have acknowledged entries.
    """
    cookie, paths = directories_of(uri, tmp_path, is_settled=False)
    for order in (paths, paths[::-1]):
        assert bookie("restore", *order, "-o", "json") == 0
        assert recorded(uri) == replace(cookie, is_in_doubt=True, incarnation="")
        on(uri, lambda store: store.delete("/cookies/b1"))
    said = capsys.readouterr().out
    assert '"state_number": 7' in said
    assert '"in_doubt": true' in said


def test_a_crash_while_the_number_rose_leaves_one_state(uri: str, tmp_path: Path) -> None:
    """The next number stands in one directory, not settled: what both may be in is restored."""
    cookie, paths = directories_of(
        uri, tmp_path, state_number=8, is_settled=False, incarnation="renewed"
    )
    for order in (paths, paths[::-1]):
        assert bookie("restore", *order) == 0
        assert recorded(uri) == replace(cookie, is_in_doubt=True, incarnation="")
        on(uri, lambda store: store.delete("/cookies/b1"))


def test_a_doubt_that_a_directory_tells_of_is_restored(uri: str, tmp_path: Path) -> None:
    """The metadata store lost it, and the copies of this bookie must not count before it ends."""
    cookie, paths = directories_of(uri, tmp_path, is_in_doubt=True)
    assert bookie("restore", *paths) == 0
    assert recorded(uri) == replace(cookie, is_in_doubt=True, incarnation="")


@pytest.mark.parametrize(
    "other",
    [
        {"state_number": 8},
        {"state_number": 9, "is_settled": False},
        {"incarnation": "another"},
    ],
)
def test_two_states_are_restored_on_request_only(
    uri: str, other: dict[str, object], tmp_path: Path, capsys: Said
) -> None:
    """Then the newer one, in doubt: one of the directories lacks what came after its state."""
    _, paths = directories_of(uri, tmp_path, **other)
    assert bookie("restore", *paths) == 1
    said = capsys.readouterr().err
    assert f"{paths[0]} holds state 7 of bookie b1, and {paths[1]} holds state " in said
    assert recorded(uri) is None
    assert bookie("restore", *paths, "--in-doubt") == 0
    restored = recorded(uri)
    assert restored is not None
    assert restored.is_in_doubt
    assert restored.incarnation == ""
    assert restored.state_number == other.get("state_number", 7)
    assert restored.is_settled


def settings_file(path: Path, uri: str, journal: Path, ledgers: Path) -> str:
    """The settings with which a bookie is started."""
    file = path / "bookie.toml"
    file.write_text(
        f'[bookie]\nid = "b1"\n[metadata]\nuri = "{uri}"\n'
        f'[storage]\njournal_dir = "{journal}"\nledgers_dir = "{ledgers}"\n',
        encoding="utf-8",
    )
    return str(file)


def test_moved_directories_are_named_by_all_cookies(uri: str, tmp_path: Path, capsys: Said) -> None:
    """Those of the settings; a bookie that is registered is not touched."""
    cookie, _ = directories_of(uri, tmp_path)
    join(uri, replace(cookie, is_in_doubt=True))
    ledgers, moved = tmp_path / "ledgers", tmp_path / "capacity"
    shutil.move(ledgers, moved)
    config = settings_file(tmp_path, uri, tmp_path / "journal", moved)
    on(uri, lambda store: store.put("/available/readonly/b1", b""))
    assert bookie("move", "--config", config) == 1
    assert "bookie b1 is running; stop it first" in capsys.readouterr().err
    on(uri, lambda store: store.delete("/available/readonly/b1"))
    assert bookie("move", "--config", config, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "bookie": "b1",
        "journal_dirs": [str(tmp_path / "journal")],
        "ledger_dirs": [str(moved)],
        "old_journal_dirs": [str(tmp_path / "journal")],
        "old_ledger_dirs": [str(ledgers)],
        "cookies_rewritten": 3,
    }
    wanted = replace(cookie, ledger_dirs=(str(moved),))
    assert recorded(uri) == replace(wanted, is_in_doubt=True)
    for directory in (tmp_path / "journal", moved):
        assert decode_cookie((directory / "COOKIE").read_bytes()) == wanted


def test_move_takes_the_settings_that_serve_takes(uri: str, tmp_path: Path, capsys: Said) -> None:
    """The cluster's and those of flags; without an id it is misused."""
    cookie, paths = directories_of(uri, tmp_path)
    join(uri, cookie)
    shutil.move(paths[0], tmp_path / "fast")
    assert bookie("move") == app.EXIT_MISUSED
    assert "bookie.id must be set" in capsys.readouterr().err
    changed = f"storage.journal_dir={tmp_path / 'fast'}"
    assert app.run(["cluster", "settings", "set", changed]) == 0
    words = ["--set", "bookie.id=b1", "--set", f"storage.ledgers_dir={paths[1]}"]
    assert bookie("move", "-m", uri, *words) == 0
    found = recorded(uri)
    assert found is not None
    assert found.journal_dirs == (str(tmp_path / "fast"),)


def test_an_older_copy_is_moved_on_request_only(uri: str, tmp_path: Path, capsys: Said) -> None:
    """The sentence says how."""
    cookie, paths = directories_of(uri, tmp_path)
    join(uri, replace(cookie, state_number=8))
    config = settings_file(tmp_path, uri, Path(paths[0]), Path(paths[1]))
    assert bookie("move", "--config", config) == 1
    assert "give --older to go on" in capsys.readouterr().err
    assert bookie("move", "--config", config, "--older") == 0


# ---- listed


def test_damaged_records_are_left_out_of_listings_and_named(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    join(uri, cookie_of(uri))
    add_ledgers(uri, 1, ("b1",), ack=1)

    async def damage(store: MetadataStore) -> None:
        await store.put(keys.cookie("b2"), b"junk")
        await store.put(FLAT.key(1), b"junk")

    on(uri, damage)
    for words, good, bad in (("cookie", "b1", "b2"), ("ledger", "0", "1")):
        assert app.run([words, "list"]) == 1
        shown, said = capsys.readouterr()
        assert shown.splitlines()[-1].split()[0] == good
        assert said.splitlines()[-1].endswith(f"damaged: {bad}")
