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


@pytest.fixture
def two_stores(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file and the variable of a shell that name two stores."""
    with config_file.open("a", encoding="utf-8") as file:
        file.write('[metadata]\nuri = "memory://cli-config-file"\n')
    monkeypatch.setenv("BOOKIE_METADATA", "memory://cli-config-shell")
    return config_file


REFUSAL = "BOOKIE_METADATA and metadata.uri in {} name different stores; remove one of them"


@pytest.mark.parametrize("words", ["config check", "cookie move"])
def test_two_stores_are_refused(
    words: str, two_stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By whatever would use the store that the file names."""
    assert app.run([*words.split(), "--config", str(two_stores)]) == 2
    assert REFUSAL.format(two_stores) in capsys.readouterr().err


def test_show_tells_which_of_two_stores_counts(
    two_stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that a bookie would not start with both."""
    assert app.run(["config", "show", "--origins", "-c", str(two_stores), "-o", "json"]) == 0
    shown = capsys.readouterr()
    assert {
        "setting": "metadata.uri",
        "value": '"memory://cli-config-file"',
        "from": str(two_stores),
    } in json.loads(shown.out)
    assert REFUSAL.format(two_stores) in shown.err


def test_commands_on_a_cluster_refuse_two_stores(
    two_stores: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the command line names one: it is used, with the credentials of the file."""
    assert app.run(["metadata", "ls"]) == 0
    monkeypatch.setenv("BOOKIE_CONFIG", str(two_stores))
    assert app.run(["metadata", "ls"]) == 2
    assert REFUSAL.format(two_stores) in capsys.readouterr().err
    assert app.run(["metadata", "ls", "-m", "memory://cli-config-shell"]) == 0


def test_check_tells_of_variables_that_do_nothing(
    config_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the likely right name."""
    monkeypatch.setenv("BOOKIE_LISTEN_PROT", "1")
    assert app.run(["config", "check", "-c", str(config_file)]) == 0
    assert capsys.readouterr().err == (
        "bookie: BOOKIE_LISTEN_PROT is no variable of bookie and is ignored;"
        " did you mean BOOKIE_LISTEN__PORT?\n"
    )


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
    """An error names the setting and the file, with status 2."""
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
