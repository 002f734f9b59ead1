"""The files of a CA's directory: one command at a time, whole, private, and for those who read."""

from __future__ import annotations

import multiprocessing
import os
import ssl
import stat
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bookie.errors import BadRequestError
from bookie.security import PemFiles, authority
from tests.unit.security.test_pem_files import settings

PROCESSES = 3
ROUNDS = 8


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A CA with a bookie."""
    authority.create_authority(tmp_path / "security")
    authority.issue(tmp_path / "security", "b1", ["127.0.0.1"])
    return tmp_path / "security"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


def issue(directory: Path, number: int) -> str:
    try:
        authority.issue(directory, f"n{number}", ["127.0.0.1"])
    except BadRequestError as error:
        return str(error)
    return ""


def init(directory: Path, number: int) -> str:
    try:
        authority.create_authority(directory / f"ca{number}")
    except BadRequestError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("run", "refusal"), [(issue, "exists already; renew it"), (init, "holds a CA already")]
)
def test_commands_at_the_same_time(
    directory: Path, run: Callable[[Path, int], str], refusal: str
) -> None:
    """One of them makes the files, and the others are refused."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        for number in range(ROUNDS):
            said = sorted(pool.map(run, [directory] * PROCESSES, [number] * PROCESSES))
            assert said[0] == ""
            assert all(refusal in one for one in said[1:])
    for number in range(ROUNDS):
        made = (directory, f"n{number}") if run is issue else (directory / f"ca{number}", "ca")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(authority.certificate_path(*made), authority.key_path(*made))
    assert leftovers(directory) == []


def test_renewals_at_the_same_time(directory: Path) -> None:
    """The last one wins, and its files fit together."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        list(pool.map(authority.renew, [directory] * 12, ["b1"] * 12))
    PemFiles(settings(directory))
    assert leftovers(directory) == []


def test_another_program_writes_first(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know of the lock. Its file stays, and no half of ours."""
    link = os.link

    def late(source: Path, target: Path) -> None:
        if target.name == "b2-key.pem":
            target.write_text("precious")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(BadRequestError, match=r"b2-key\.pem exists already"):
        authority.issue(directory, "b2")
    assert (directory / "b2-key.pem").read_text() == "precious"
    assert not (directory / "b2.pem").exists()
    assert leftovers(directory) == []


@pytest.mark.parametrize("failing", [0, 1])
def test_a_renewal_that_fails(
    directory: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A full disk is found out before the first file is replaced."""
    before = {path: path.read_bytes() for path in directory.iterdir()}
    fsync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing + 1:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        authority.renew(directory, "b1")
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_a_renewal_that_was_interrupted_is_made_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new key stands there, and the new certificate does not."""
    replace, calls = Path.replace, []

    def interrupted(source: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            authority.renew(directory, "b1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(ssl.SSLError, match="MISMATCH"):
        server.load_cert_chain(directory / "b1.pem", directory / "b1-key.pem")
    authority.renew(directory, "b1")
    PemFiles(settings(directory))


def test_a_ca_keeps_its_key_file(directory: Path) -> None:
    """A renewal that ends between two files could otherwise lose it."""
    before = (directory / "ca-key.pem").stat()
    authority.renew(directory, "ca")
    assert (directory / "ca-key.pem").stat() == before


@pytest.mark.parametrize(("before", "after"), [(0o640, 0o640), (0o600, 0o600), (0o644, 0o640)])
def test_a_renewed_key_stays_readable_for_its_group(
    directory: Path, before: int, after: int
) -> None:
    key = directory / "b1-key.pem"
    key.chmod(before)
    authority.renew(directory, "b1")
    assert mode(key) == after
    assert mode(directory / "b1.pem") == 0o644


def test_a_symbolic_link_stays(directory: Path, tmp_path: Path) -> None:
    key, target = directory / "b1-key.pem", tmp_path / "elsewhere.pem"
    key.rename(target)
    key.symlink_to(target)
    authority.renew(directory, "b1")
    assert key.is_symlink()
    assert not target.is_symlink()
    PemFiles(settings(directory))


def test_a_key_is_private_from_its_first_moment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other user can open it, and no link of his is followed."""
    opened: dict[str, tuple[int, int]] = {}
    open_file = os.open

    def watched(path: Any, flags: int, file_mode: int = 0o777, **others: Any) -> int:
        if flags & os.O_CREAT:
            opened[Path(path).name.split(".")[1]] = (flags, file_mode)
        return open_file(path, flags, file_mode, **others)

    monkeypatch.setattr(os, "open", watched)
    authority.issue(directory, "b2")
    authority.renew(directory, "b1")
    assert {name: file_mode for name, (_, file_mode) in opened.items()} == {
        "b1-key": 0o600,
        "b2-key": 0o600,
        "b1": 0o644,
        "b2": 0o644,
    }
    assert all(flags & os.O_EXCL for flags, _ in opened.values())
