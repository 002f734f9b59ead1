"""``bookie security``: certificates made, renewed and shown."""

from __future__ import annotations

import json
import re
import shlex
import stat
from pathlib import Path

import pytest

from bookie.cli import app
from bookie.config import SecuritySettings, load_settings
from bookie.env import SystemClock
from bookie.security import PemFiles, authority
from bookie.security.tokens import TokenKeys, TokenRefused, TokenVerifier


def test_from_init_to_renew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "ca"
    assert app.run(["security", "init", str(home), "--host", "b1.example"]) == 0
    said = capsys.readouterr().out
    assert f'certificate_file = "{home}/bookie.pem"' in said
    assert f"export BOOKIE_SECURITY__CA_FILE={home}/ca.pem" in said
    assert app.run(["security", "issue", str(home), "b2", "--host", "b2.example"]) == 0
    assert app.run(["security", "renew", str(home), "b2", "--days", "2"]) == 0
    capsys.readouterr()
    assert app.run(["security", "show", str(home), "--output", "json"]) == 0
    shown = {Path(one["file"]).stem: one for one in json.loads(capsys.readouterr().out)}
    assert {name: one["names"] for name, one in shown.items() if name != "bookie"} == {
        "b2": ["b2.example"],
        "ca": [],
        "client": [],
    }
    assert {"b1.example", "localhost", "127.0.0.1", "::1"} <= set(shown["bookie"]["names"])
    assert shown["b2"]["expires"] < shown["bookie"]["expires"] < shown["ca"]["expires"]
    assert shown["b2"]["issuer"] == shown["ca"]["subject"]
    for name in ("bookie", "client", "b2"):
        PemFiles(SecuritySettings.model_validate(authority.settings_for(home, name)))


def test_show_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority.create_authority(tmp_path)
    authority.issue(tmp_path, "b1", ["b1.example", "10.0.0.1"])
    assert app.run(["security", "show", str(tmp_path / "b1.pem")]) == 0
    said = capsys.readouterr().out
    assert "CN=b1" in said
    assert "b1.example, 10.0.0.1" in said


def test_refusals_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["security", "issue", str(tmp_path), "b1", "--host", "x"]) == 1
    assert "does not exist; `bookie security init" in capsys.readouterr().err
    (tmp_path / "x.pem").write_text("nonsense")
    assert app.run(["security", "show", str(tmp_path / "x.pem")]) == 1
    assert "holds no certificate" in capsys.readouterr().err


def test_a_refused_host_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = str(tmp_path / "ca")
    assert app.run(["security", "init", home, "--host", "bücher.example"]) == 1
    assert "'bücher.example' is no host name" in capsys.readouterr().err
    assert app.run(["security", "init", home, "--host", "b1.example"]) == 0
    assert app.run(["security", "init", home]) == 1
    assert "`bookie security issue` makes certificates" in capsys.readouterr().err


GUIDE = Path(__file__).parents[3] / "docs" / "security.md"


def test_the_guide_as_it_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands work, and its settings are those of the certificate that they make."""
    uri = f"local://{tmp_path}/metadata"
    assert app.run(["cluster", "init", "-m", uri]) == 0
    monkeypatch.setenv("BOOKIE_METADATA", uri)
    page = GUIDE.read_text(encoding="utf-8").replace("/etc/bookie/security", f"{tmp_path}/ca")
    page = page.replace("/etc/bookie/tokens", f"{tmp_path}/tokens").replace(
        "/run/reports", f"{tmp_path}"
    )
    page = page.replace("etcd://m1:2379/prod", uri)
    typed = [
        shlex.split(words, comments=True)
        for words in re.findall(r"^\$ bookie (security .*)$", page, re.MULTILINE)
    ]
    made = ["init", "issue", "issue", "show", "token-key", "token"]
    assert [words[1] for words in typed] == made + ["role"] * 8
    for words in typed:
        assert app.run(words) == 0, words
    printed_by_all = capsys.readouterr().out
    assert "b2.example, 10.0.0.2" in printed_by_all
    assert re.search(r"shop +writer +log shop/\*", printed_by_all)
    assert "reports lost 1 role" in printed_by_all
    (printed,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "bookie.toml").write_text(printed, encoding="utf-8")
    assert PemFiles(load_settings(tmp_path / "bookie.toml").security).pems.certificate


def subject(home: Path, token: str, cluster: str) -> str:
    """Who shows this token, as a bookie of the cluster sees it now."""
    verifier = TokenVerifier(TokenKeys(str(home / "token-keys.json")), cluster)
    return verifier.verify(token, SystemClock().now_ms() / 1000).subject


def test_keys_and_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, file = tmp_path / "keys", tmp_path / "token"
    make = ["security", "token-key", str(home)]
    assert app.run(make) == 0
    said = capsys.readouterr().out
    (first,) = re.findall(r"^key (\w+) signs", said)
    assert f"{home}/token-key.json\n{home}/token-keys.json\n" in said
    token = ["security", "token", str(home), "reports", "--audience", "c1"]
    assert app.run(token) == 0
    printed = capsys.readouterr().out
    assert subject(home, printed.removesuffix("\n"), "c1") == "reports"
    file.touch(0o644)
    assert app.run([*token, "--to", str(file), "--minutes", "2"]) == 0
    assert capsys.readouterr().out == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert subject(home, file.read_text().strip(), "c1") == "reports"
    with pytest.raises(TokenRefused, match="another cluster"):
        subject(home, file.read_text().strip(), "c2")
    assert app.run([*make, "--algorithm", "HS256"]) == 0
    assert stat.S_IMODE((home / "token-keys.json").stat().st_mode) == 0o600
    assert app.run([*make, "--forget", first]) == 0
    with pytest.raises(TokenRefused, match="does not have"):
        subject(home, file.read_text().strip(), "c1")


def test_a_token_for_the_cluster_of_a_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, uri = tmp_path / "keys", f"local://{tmp_path}/metadata"
    assert app.run(["cluster", "init", "--metadata", uri]) == 0
    assert app.run(["security", "token-key", str(home)]) == 0
    capsys.readouterr()
    assert app.run(["cluster", "status", "--metadata", uri, "--output", "json"]) == 0
    cluster = json.loads(capsys.readouterr().out)["instance_id"]
    words = ["security", "token", str(home), "reports"]
    assert app.run([*words, "-m", uri]) == 0
    assert subject(home, capsys.readouterr().out.strip(), cluster) == "reports"
    monkeypatch.setenv("BOOKIE_METADATA", uri)
    assert app.run(words) == 0
    assert subject(home, capsys.readouterr().out.strip(), cluster) == "reports"


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["token", "DIR", "reports"], 2, "--audience CLUSTER-ID or --metadata"),
        (["token", "DIR", "reports", "--audience", "c1"], 1, "`bookie security token-key"),
        (["token-key", "DIR", "--forget", "a"], 1, "holds no key a"),
        (["token-key", "DIR", "--forget", "a", "--algorithm", "HS256"], 2, "makes no key"),
        (["token-key", "DIR", "--algorithm", "none"], 2, "none"),
    ],
)
def test_tokens_that_are_not_made(
    words: list[str],
    status: int,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(tmp_path) if one == "DIR" else one for one in words]
    assert app.run(["security", *given]) == status
    assert sentence in " ".join(capsys.readouterr().err.split())
