"""``bookie config``."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from bookie.cli import app


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A small valid configuration."""
    path = tmp_path / "bookie.toml"
    path.write_text('[bookie]\nid = "b-7"\n[listen]\nport = 4000\n', encoding="utf-8")
    return path


def test_default_is_toml_with_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed default is a file that TOML reads and that sets nothing; JSON has the values."""
    assert app.run(["config", "default"]) == 0
    text = capsys.readouterr().out
    document = tomllib.loads(text)
    assert not any(document.values())
    assert "\n#port = 3181\n" in text
    assert app.run(["config", "default", "--output", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert set(values) == set(document)
    assert values["listen"]["port"] == 3181


def test_show_is_what_is_in_effect(
    config_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag wins over the environment, which wins over the file."""
    monkeypatch.setenv("BOOKIE_LISTEN__PORT", "5000")
    monkeypatch.setenv("BOOKIE_HTTP__PORT", "5001")
    words = ["config", "show", "-c", str(config_file), "--set", "listen.port=6000", "-o", "json"]
    assert app.run(words) == 0
    settings = json.loads(capsys.readouterr().out)
    assert settings["bookie"]["id"] == "b-7"
    assert settings["listen"]["port"] == 6000
    assert settings["http"]["port"] == 5001


def test_check_accepts(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Valid settings are called valid, with status 0."""
    assert app.run(["config", "check", "--config", str(config_file)]) == 0
    assert capsys.readouterr().out == f"{config_file}: valid\n"
    assert app.run(["config", "check", "--config", str(config_file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "bookie_id": "b-7"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[listen]\nprot = 1\n", "unknown setting listen.prot; did you mean port?"),
        ("[listen]\nport = 70000\n", "listen.port"),
        ("[lsten]\n", "unknown section [lsten]; did you mean listen?"),
        ("listen", "is not valid TOML"),
    ],
)
def test_check_refuses_in_one_sentence(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is named together with the file, with status 2."""
    path = tmp_path / "bookie.toml"
    path.write_text(text, encoding="utf-8")
    assert app.run(["config", "check", "--config", str(path)]) == app.EXIT_MISUSED
    err = capsys.readouterr().err
    assert words in err
    assert str(path) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "bookie.id="], "bookie.id must be set"),
        (["--set", "metadata.uri=zk://h:2181"], "must name a scope"),
    ],
)
def test_check_refuses_what_a_bookie_would_refuse(
    words: list[str], sentence: str, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Well-formed settings are invalid if `bookie serve` refuses them."""
    assert app.run(["config", "check", "-c", str(config_file), *words]) == app.EXIT_MISUSED
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("word", ["port=1", "listen.port", "a.b.c=1"])
def test_malformed_override_is_misuse(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An override that is not section.key=value is refused before anything is read."""
    assert app.run(["config", "show", "--set", word]) == app.EXIT_MISUSED
    assert "must look like section.key=value" in capsys.readouterr().err
