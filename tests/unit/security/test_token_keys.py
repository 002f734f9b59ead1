"""Keys and tokens that `bookie security` makes: rotation, and who may read the files."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from bookie.errors import BadRequestError
from bookie.security import token_keys
from bookie.security.private_files import NewFile, replace_files
from bookie.security.tokens import TokenClaims, TokenKeys, TokenRefused, TokenVerifier

CLUSTER = "2f8a1c94-6f0e-4b7e-9d5c-0a6f3c1d2e4b"
NOW = 1_800_000_000.5


def token(directory: Path, name: str = "reports") -> str:
    return token_keys.make_token(directory, name, CLUSTER, seconds=900, now_seconds=NOW)


def verifier(directory: Path) -> TokenVerifier:
    return TokenVerifier(TokenKeys(str(token_keys.key_set_path(directory))), CLUSTER)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def ids(directory: Path) -> list[str]:
    content = json.loads(token_keys.key_set_path(directory).read_bytes())
    return [one["kid"] for one in content["keys"]]


@pytest.mark.parametrize(("algorithm", "readable"), [("EdDSA", 0o644), ("HS256", 0o600)])
def test_keys_and_tokens(tmp_path: Path, algorithm: str, readable: int) -> None:
    home = tmp_path / "keys"
    key_id = token_keys.create_key(home, algorithm)
    assert ids(home) == [key_id]
    assert mode(home) == 0o700
    assert mode(token_keys.signing_key_path(home)) == 0o600
    assert mode(token_keys.key_set_path(home)) == readable
    assert sorted(os.listdir(home)) == ["token-key.json", "token-keys.json"]
    assert verifier(home).verify(token(home), NOW) == TokenClaims("reports", int(NOW) + 900)


def test_no_private_part_reaches_a_bookie(tmp_path: Path) -> None:
    token_keys.create_key(tmp_path)
    private = json.loads(token_keys.signing_key_path(tmp_path).read_bytes())["d"]
    assert private not in token_keys.key_set_path(tmp_path).read_text()


def test_rotation(tmp_path: Path) -> None:
    """Tokens of former keys stay good until their key is forgotten."""
    first = token_keys.create_key(tmp_path)
    before = token(tmp_path)
    second = token_keys.create_key(tmp_path)
    after = token(tmp_path)
    assert ids(tmp_path) == [first, second]
    both = verifier(tmp_path)
    assert both.verify(before, NOW) == both.verify(after, NOW)
    token_keys.forget_key(tmp_path, first)
    assert ids(tmp_path) == [second]
    only = verifier(tmp_path)
    assert only.verify(after, NOW)
    with pytest.raises(TokenRefused, match="that the bookie does not have"):
        only.verify(before, NOW)


def test_a_rotation_keeps_the_algorithm(tmp_path: Path) -> None:
    token_keys.create_key(tmp_path, "HS256")
    token_keys.create_key(tmp_path)
    keys = TokenKeys(str(token_keys.key_set_path(tmp_path))).by_id
    assert [one.algorithm for one in keys.values()] == ["HS256", "HS256"]


def test_a_set_with_a_secret_is_private_until_the_secret_is_forgotten(tmp_path: Path) -> None:
    path = token_keys.key_set_path(tmp_path)
    token_keys.create_key(tmp_path)
    assert mode(path) == 0o644
    secret = token_keys.create_key(tmp_path, "HS256")
    assert mode(path) == 0o600
    token_keys.create_key(tmp_path, "EdDSA")
    assert mode(path) == 0o600
    token_keys.forget_key(tmp_path, secret)
    assert mode(path) == 0o644


def test_keys_that_are_not_forgotten(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="holds no key x; it holds none"):
        token_keys.forget_key(tmp_path, "x")
    key_id = token_keys.create_key(tmp_path)
    with pytest.raises(BadRequestError, match=f"holds no key x; it holds {key_id}"):
        token_keys.forget_key(tmp_path, "x")
    with pytest.raises(BadRequestError, match="signs new tokens; make another one first"):
        token_keys.forget_key(tmp_path, key_id)
    assert ids(tmp_path) == [key_id]


@pytest.mark.parametrize("command", ["create", "forget"])
def test_commands_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A second command begins while the first one has read the key set, and not yet written it."""
    former = token_keys.create_key(tmp_path)
    token_keys.create_key(tmp_path)
    made: list[str] = []
    second = threading.Thread(target=lambda: made.append(token_keys.create_key(tmp_path)))
    read = token_keys._read_key_set

    def late(directory: Path) -> list[dict[str, Any]]:
        found = read(directory)
        if second.ident is None:
            second.start()
            second.join(1)  # the lock keeps it waiting
        return found

    monkeypatch.setattr(token_keys, "_read_key_set", late)
    if command == "create":
        made.append(token_keys.create_key(tmp_path))
    else:
        token_keys.forget_key(tmp_path, former)
    second.join()
    signing = json.loads(token_keys.signing_key_path(tmp_path).read_bytes())["kid"]
    assert signing in made
    assert set(made) <= set(ids(tmp_path))
    assert (former in ids(tmp_path)) == (command == "create")
    assert verifier(tmp_path).verify(token(tmp_path), NOW)


def test_keys_of_no_directory(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match=r"none does not exist; `bookie security token-key"):
        token_keys.forget_key(tmp_path / "none", "x")
    with pytest.raises(BadRequestError, match="must be EdDSA or HS256"):
        token_keys.create_key(tmp_path / "none", "RS256")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"d": "AAAA"},
        {"d": None},
        {"d": "A" * 43},  # of another public key
        {"x": "AAAA"},
        {"kty": "RSA"},
        {"kid": ""},
        {"alg": "HS256"},
    ],
)
def test_a_damaged_key_signs_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    token_keys.create_key(tmp_path)
    path = token_keys.signing_key_path(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    with pytest.raises(BadRequestError, match=r"token-key\.json holds no key \(JWK\) that signs"):
        token(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "7", "nonsense", "{}", "[" * 100_000])
def test_files_of_something_else(tmp_path: Path, content: str) -> None:
    token_keys.create_key(tmp_path)
    token_keys.signing_key_path(tmp_path).write_text(content)
    with pytest.raises(BadRequestError, match="holds no key"):
        token(tmp_path)
    token_keys.key_set_path(tmp_path).write_text(content)
    with pytest.raises(BadRequestError, match=r"token-keys\.json holds no"):
        token_keys.create_key(tmp_path, "EdDSA")
    assert token_keys.key_set_path(tmp_path).read_text() == content, "nothing is lost"


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="does not exist; `bookie security token-key"):
        token(tmp_path)
    with pytest.raises(BadRequestError, match="must be EdDSA or HS256, not RS256"):
        token_keys.create_key(tmp_path, "RS256")
    token_keys.create_key(tmp_path)
    for name in ("", "a\nb", "a" * 256):
        with pytest.raises(BadRequestError, match="1 to 255 printable characters"):
            token(tmp_path, name)
    with pytest.raises(BadRequestError, match="needs the id of its cluster"):
        token_keys.make_token(tmp_path, "a", "", seconds=1, now_seconds=NOW)


def test_a_private_file_is_private_from_its_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = tmp_path / "token"
    former.touch(0o644)
    seen: list[tuple[int, int]] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        status = os.fstat(descriptor)
        seen.append((stat.S_IMODE(status.st_mode), status.st_size))
        sync(descriptor)

    opened: list[int] = []
    open_file = os.open

    def look_first(path: Path, flags: int, permissions: int = 0o777) -> int:
        descriptor = open_file(path, flags, permissions)
        opened.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", look)
        patch.setattr(os, "open", look_first)
        replace_files([NewFile(former, b"secret", 0o600)])
    assert opened[0] == 0o600
    assert seen[0] == (0o600, 6)
    assert former.read_bytes() == b"secret"
    assert mode(former) == 0o600


def test_a_failed_write_keeps_the_former_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key set is written first, so that nothing is signed by a key that nobody knows."""
    first = token_keys.create_key(tmp_path)

    replace = Path.replace

    def fail(source: Path, target: Path) -> Path:
        if target == token_keys.signing_key_path(tmp_path):
            raise OSError("no space")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        token_keys.create_key(tmp_path)
    assert ids(tmp_path)[0] == first
    assert verifier(tmp_path).verify(token(tmp_path), NOW)
