"""The habits that CONTRIBUTING.md asks for: commands, news fragments, decisions, hooks."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bookie import __version__

ROOT = Path(__file__).parents[2]

TYPES = ["safety", "feature", "operation", "format", "removal"]
"""The types of news fragments, in the order of a version's section."""

FRAGMENT_LINE_CHARACTERS_MAX = 126
DECISION_BYTES_MAX = 2048
DECISION_HEADINGS = ["Context", "Decision", "Cost", "Change"]


def text(name: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def news_config() -> dict[str, object]:
    """The settings of towncrier."""
    config: dict[str, object] = tomllib.loads(text("pyproject.toml"))["tool"]["towncrier"]
    return config


# ---- the page


def test_the_page_opens_with_commands_that_exist() -> None:
    """Build, all tests, one test, one seed: verbs of the Makefile, and a test that is there."""
    block = re.search(r"```console\n(.*?)```", text("CONTRIBUTING.md"), re.DOTALL)
    assert block is not None
    lines = [shlex.split(line, comments=True)[1:] for line in block[1].splitlines()]
    verbs = {
        word
        for words in lines
        if "make" in words
        for word in words[words.index("make") + 1 :]
        if "=" not in word
    }
    assert verbs >= {"setup", "test", "test-core", "sim", "check"}
    assert verbs <= set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    (pytests,) = (words for words in lines if words[0] == ".venv/bin/pytest")
    assert pytests[2] == "-k"
    assert list((ROOT / pytests[1]).glob(f"test_*{pytests[3]}*.py"))


# ---- news fragments


def test_the_types_of_fragments_are_explained() -> None:
    """In the order in which a section shows them."""
    types = news_config()["type"]
    assert isinstance(types, list)
    assert [one["directory"] for one in types] == TYPES
    assert re.findall(r"^\| `(\w+)` \|", text("changes/README.md"), re.MULTILINE) == TYPES


def test_the_draft_finds_its_files_and_its_place() -> None:
    """The mark stands once in the changelog, before the newest version."""
    config = news_config()
    changelog, mark = text(str(config["filename"])), str(config["start_string"])
    assert changelog.count(mark) == 1
    assert changelog.index(mark) < changelog.index("\n## ")
    assert (ROOT / str(config["template"])).is_file()
    assert (ROOT / str(config["directory"])).is_dir()


def faults(path: Path) -> list[str]:
    """The faults of a news fragment, a sentence each."""
    name = re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.(\w+)\.md", path.name)
    if name is None or name[2] not in TYPES:
        return [f"its name is not words-with-dashes.TYPE.md, TYPE one of {', '.join(TYPES)}"]
    said = path.read_text(encoding="utf-8")
    found = []
    if not said.strip().endswith("."):
        found.append("its last sentence has no end")
    if said.lstrip().startswith(("-", "*", "#")):
        found.append("bullets and headings come by themselves")
    if max(map(len, said.splitlines()), default=0) > FRAGMENT_LINE_CHARACTERS_MAX:
        found.append(f"a line has more than {FRAGMENT_LINE_CHARACTERS_MAX} characters")
    return found


def test_news_fragments_have_valid_names() -> None:
    """A fragment whose name has no type would be missing in the changelog."""
    others = {"README.md", "section.md.jinja"}
    offenders = [
        f"changes/{path.name}: {fault}"
        for path in sorted((ROOT / "changes").iterdir())
        if path.name not in others
        for fault in faults(path)
    ]
    assert not offenders, "\n" + "\n".join(offenders)


@pytest.mark.parametrize(
    ("name", "said", "count"),
    [
        ("slow-devices.operation.md", "A slow device is named.\n", 0),
        ("slow-devices.bug.md", "A slow device is named.\n", 1),
        ("slow_devices.operation.md", "A slow device is named.\n", 1),
        ("slow-devices.md", "A slow device is named.\n", 1),
        ("slow-devices.operation", "A slow device is named.\n", 1),
        ("slow-devices.operation.md", "- A slow device is named\n", 2),
        ("slow-devices.operation.md", "", 1),
    ],
)
def test_a_wrong_fragment_is_noticed(tmp_path: Path, name: str, said: str, count: int) -> None:
    """By its name, its end, its bullet."""
    (tmp_path / name).write_text(said, encoding="utf-8")
    assert len(faults(tmp_path / name)) == count


def test_only_checks_and_releases_need_the_drafts_tool() -> None:
    """A running bookie does without towncrier."""
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    having = [
        name
        for name, lines in {"core": project["dependencies"], **extras}.items()
        if "towncrier" in {Requirement(line).name for line in lines}
    ]
    assert having == ["dev"]


def test_all_places_name_one_version() -> None:
    """The wheel's, the program's, and that of the guide which installs the wheel."""
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    assert version == __version__
    assert set(re.findall(r"bookie-(\d[\d.]+)-py3", text("docs/spark.md"))) == {version}


# ---- decisions


def test_each_decision_is_a_page_with_its_row() -> None:
    """Numbered without a gap, short, with the same headings, in the index and on the site."""
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    index, site = text("docs/decisions/index.md"), text("mkdocs.yml")
    assert [int(path.name[:2]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        said = path.read_text(encoding="utf-8")
        assert len(said.encode()) <= DECISION_BYTES_MAX, path.name
        assert said.startswith(f"# {int(path.name[:2])} "), path.name
        assert re.findall(r"^## (.+)$", said, re.MULTILINE) == DECISION_HEADINGS, path.name
        assert index.count(f"]({path.name})") == 1, path.name
        assert site.count(f": decisions/{path.name}\n") == 1, path.name


# ---- hooks


def entries() -> dict[str, str]:
    """The hooks, each with the command or pattern that it runs."""
    found = re.findall(
        r"^      - id: (\S+)\n        name: .*\n        entry: (.*)$",
        text(".pre-commit-config.yaml"),
        re.MULTILINE,
    )
    return {name: entry.strip("'") for name, entry in found}


def test_hooks_run_the_tools_that_setup_installs() -> None:
    """And nothing that they would fetch by themselves."""
    extras = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]
    tools = {Requirement(line).name for line in extras["dev"]} | {"lint-imports"}
    hooks = entries()
    subject = hooks.pop("subject")
    assert subject
    assert hooks
    for entry in hooks.values():
        assert entry.startswith(".venv/bin/")
        assert entry.split()[0].removeprefix(".venv/bin/") in tools


@pytest.mark.parametrize(
    ("message", "good"),
    [
        ("wire: a message names its ledger once\n", True),
        ("wire: a message names its ledger once\n\nIt named it twice.\n", True),
        ("wire: a message names its ledger once\n# Please enter the message\n", True),
        ("fixup! wire: a message names its ledger once\n", True),
        ("merge: what is read late\n", True),
        ("wire: " + "x" * 66 + "\n", True),
        ("wire: " + "x" * 67 + "\n", False),
        ("wire: a message names its ledger once\nIt named it twice.\n", False),
        ("Merge branch 'main' into wire\n", False),
        ("mend the wire\n", False),
        ("\n", False),
    ],
)
def test_the_hook_knows_a_good_subject(message: str, good: bool) -> None:
    """A room, a colon, and the change: 72 characters, then an empty line."""
    # As pre-commit searches a file that it reads as a whole.
    found = re.search(entries()["subject"].encode(), message.encode(), re.MULTILINE | re.DOTALL)
    assert (found is not None) == good
