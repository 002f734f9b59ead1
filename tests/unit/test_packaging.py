"""What ships around the code: container, pins, licence, alert rules, verbs of the Makefile."""

from __future__ import annotations

import ast
import fnmatch
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from bookie.telemetry import Metrics

ROOT = Path(__file__).parents[2]


DISTRIBUTIONS = {
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "jwt": "pyjwt",
    "prometheus_client": "prometheus-client",
}
"""Module → the distribution that brings it, where the names differ."""

BROUGHT_ALONG = {
    "py4j": "pyspark",
}
"""Module → the requirement of ours that cannot do without it, and so always brings it."""


def text(name: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest), continued lines joined, comments left out."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text("Dockerfile"), flags=re.MULTILINE))
    lines = [line for line in joined.splitlines() if line.strip()]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


def pins(name: str) -> dict[str, Version]:
    """Distribution → version of one file under `requirements/`."""
    lines = [line for line in text(f"requirements/{name}.txt").splitlines() if line[:1] != "#"]
    plain = (line.partition(";")[0].partition("==") for line in lines)
    return {name: Version(version) for name, _, version in plain}


def test_the_container_copies_what_exists_and_what_the_context_holds() -> None:
    """A path that is missing or ignored would break the build, and nobody builds it here."""
    patterns = [line for line in text(".dockerignore").splitlines() if line[:1] not in ("#", "")]
    assert patterns[0] == "*", "the context is a list of what is let in"
    let_in = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    copied = [
        source
        for instruction, rest in instructions()
        if instruction == "COPY" and "--from=" not in rest
        for source in rest.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), f"the Dockerfile copies {source}, which does not exist"
        assert any(fnmatch.fnmatch(source, pattern) for pattern in let_in), (
            f"the Dockerfile copies {source}, which .dockerignore keeps out"
        )


def test_the_container_runs_without_root_and_answers_for_its_health() -> None:
    """The last stage ends with a numeric user, a health check and the daemon."""
    found = instructions()
    assert found[0] == ("ARG", "BASE_IMAGE=python:3.11-slim")
    assert {rest for name, rest in found if name == "FROM"} == {
        "${BASE_IMAGE} AS build",
        "${BASE_IMAGE}",
    }
    last = dict(found)
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last["USER"])
    assert "/healthz" in last["HEALTHCHECK"]
    assert json.loads(last["ENTRYPOINT"]) == ["bookie"]
    assert json.loads(last["CMD"]) == ["serve", "--config", "/etc/bookie/bookie.toml"]
    assert json.loads(last["VOLUME"]) == ["/var/lib/bookie"], "a volume below it would be nameless"


def test_the_health_check_of_the_container_is_python() -> None:
    """It is carried out without a shell; a mistake in it would only show in production."""
    check = dict(instructions())["HEALTHCHECK"]
    command = json.loads(check.partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    compile(command[2], "HEALTHCHECK", "exec")


def test_pins_satisfy_what_the_project_asks_for() -> None:
    """Each direct requirement is pinned inside its range, in the set where it belongs."""
    project = tomllib.loads(text("pyproject.toml"))
    extras = project["project"]["optional-dependencies"]
    core = pins("core")
    for requirements, pinned in (
        (project["project"]["dependencies"], core),
        (extras["test"], core | pins("test")),
        (extras["dev"], core | pins("test") | pins("dev")),
        (extras["docs"], core | pins("test") | pins("dev") | pins("docs")),
        (extras["spark"], core | pins("spark")),
        (project["build-system"]["requires"], pins("build")),
    ):
        for requirement in map(Requirement, requirements):
            assert requirement.name in pinned, f"{requirement.name} has no pin: make lock"
            assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_extras_are_what_tests_and_checks_need() -> None:
    """An unused extra would install its distributions in vain."""
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert set(project["optional-dependencies"]) == {"test", "dev", "docs", "spark"}


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def distribution(module: str) -> str:
    """The distribution that brings a module of a third party."""
    two = ".".join(module.split(".")[:2])
    top = module.split(".", maxsplit=1)[0]
    named = DISTRIBUTIONS.get(two) or DISTRIBUTIONS.get(top) or BROUGHT_ALONG.get(top)
    return named or top.lower().replace("_", "-")


def undeclared(folder: Path, declared: set[str], *, ignored: tuple[str, ...] = ()) -> list[str]:
    """Imports of third parties below a folder whose distribution is not declared."""
    ours = {"bookie", "pyspark_bookkeeper"}
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sorted(folder.rglob("*.py"))
        if not path.relative_to(ROOT).as_posix().startswith(ignored)
        for module in imported(path)
        if module.split(".")[0] not in ours | sys.stdlib_module_names
        and distribution(module) not in declared
    ]


def test_every_import_is_declared() -> None:
    """What the package imports comes with it; what only Spark or pytest brings stays with those."""
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    core = {Requirement(line).name for line in project["dependencies"]}
    spark = core | {Requirement(line).name for line in extras["spark"]}
    apart = ("bookie/spark/", "bookie/testing/pytest_plugin.py")
    assert undeclared(ROOT / "bookie", core, ignored=apart) == []
    assert undeclared(ROOT / "bookie" / "spark", spark) == []
    assert undeclared(ROOT / "pyspark_bookkeeper", spark) == []


def test_every_declared_distribution_is_imported() -> None:
    """A requirement that nothing imports would be installed in vain."""
    project = tomllib.loads(text("pyproject.toml"))["project"]
    files = [*(ROOT / "bookie").rglob("*.py"), *(ROOT / "pyspark_bookkeeper").rglob("*.py")]
    used = {distribution(module) for path in files for module in imported(path)}
    # Spark imports these by itself: for frames of pandas, Connect and pipelines.
    by_spark = {"googleapis-common-protos", "grpcio-status", "pandas", "pyyaml", "zstandard"}
    declared = {
        Requirement(line).name
        for line in project["dependencies"] + project["optional-dependencies"]["spark"]
    }
    assert declared - used <= by_spark


def test_no_distribution_is_pinned_to_two_versions() -> None:
    """The sets are installed into one environment."""
    seen: dict[str, Version] = {}
    for name in ("build", "core", "test", "dev", "docs", "spark"):
        for distribution, version in pins(name).items():
            assert seen.setdefault(distribution, version) == version, distribution


def test_alerts_name_metrics_that_exist() -> None:
    """A rule on a metric that is never exposed stays silent for ever.

    `tests/system/test_alerts.py` has each rule fire.
    """
    body, _ = Metrics().exposition()
    exposed = set(re.findall(r"^# TYPE (\w+) ", body.decode(), re.MULTILINE))
    asked = set(re.findall(r"\b(?:bookie|process)_\w+", text("conf/prometheus/alerts.yml")))
    assert asked
    assert {re.sub(r"_bucket$", "", name) for name in asked} <= exposed


def test_every_alert_names_its_runbook() -> None:
    """A section of the page, whose table names the alert and links to the same section."""
    page = text("docs/runbooks.md")
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    sections = {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in headings}
    listed = {
        alert: section
        for names, section in re.findall(
            r"^\| (`Bookie.*?) \| \[.*\]\(#(.*)\) \|$", page, re.MULTILINE
        )
        for alert in re.findall(r"`(\w+)`", names)
    }
    rules = re.split(r"- alert: ", text("conf/prometheus/alerts.yml"))[1:]
    for rule in rules:
        alert = rule.partition("\n")[0]
        found = re.findall(r"^          runbook: docs/runbooks\.md#(\S+)$", rule, re.MULTILINE)
        assert found == [listed[alert]], alert
        assert found[0] in sections, f"{alert}: docs/runbooks.md has no section {found[0]}"
    assert len(listed) == len(rules)


def test_the_licence_is_apache_2() -> None:
    """As `pyproject.toml` says."""
    assert "Apache License\n                           Version 2.0" in text("LICENSE")
    assert tomllib.loads(text("pyproject.toml"))["project"]["license"] == "Apache-2.0"


def test_every_verb_of_the_makefile_is_listed_and_explained() -> None:
    """`make help` shows a verb only when it has a comment; folders of tests that it names exist."""
    makefile = text("Makefile")
    verbs = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    explained = set(re.findall(r"^([a-z][a-z-]*):.*## \S", makefile, re.MULTILINE))
    phony = set(makefile.partition(".PHONY: ")[2].partition("\n\n")[0].replace("\\\n", "").split())
    assert verbs == explained == phony
    for folder in re.findall(r"\btests/\w+", makefile):
        assert (ROOT / folder).is_dir(), f"the Makefile names {folder}, which does not exist"


def test_every_verb_that_documents_name_is_run() -> None:
    """By every CI run, by the nightly one, or by a test that types a document."""
    named = {
        verb
        for document in ("README.md", "tests/README.md", "docs/operations.md")
        for verb in re.findall(r"\bmake ([a-z][a-z-]+)(?=[` ]+)", text(document))
        if re.search(rf"^{verb}:", text("Makefile"), re.MULTILINE)
    }
    assert {"run", "demo", "test", "test-core", "soak", "test-image"} <= named
    makefile = text("Makefile")
    gate = set(re.findall(r"^(?:step|aside) (.*?)(?: \|\||$)", text(".ci/run"), re.MULTILINE))
    gate = {verb for words in gate for verb in words.split()}
    nightly = re.search(r"^for verb in (.*); do$", text(".ci/nightly"), re.MULTILINE)
    assert nightly is not None
    # `make test` consists of verbs that the gate runs one by one.
    parts = re.search(r"^test: (.*?) ##", makefile, re.MULTILINE)
    assert parts is not None
    assert set(parts[1].split()) == {"java", "test-core", "test-day", "test-night"}
    assert {"test-core", "test-day"} <= gate
    assert "test-night" in nightly[1].split()
    typed = {"run", "release"}  # tests/installed: test_readme_typed.py, test_make_release.py
    typed |= {"walk"}  # tests/walks/test_walks.py
    typed |= set(
        re.findall(r"^make --no-print-directory (\w+)", text("tests/image/check.sh"), re.MULTILINE)
    )
    assert re.search(r"^spark-setup: .*\bzookeeper\b", makefile, re.MULTILINE)
    inside = {"help", "test", "test-installed", "zookeeper"}
    covered = gate | set(nightly[1].split()) | typed | inside
    assert named <= covered, f"no CI runs {sorted(named - covered)}"
