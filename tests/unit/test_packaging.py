"""What ships around the code: container, pins, licence, alert rules, verbs of the Makefile."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from bookie.telemetry import Metrics

ROOT = Path(__file__).parents[2]


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


def test_no_distribution_is_pinned_to_two_versions() -> None:
    """The sets are installed into one environment."""
    seen: dict[str, Version] = {}
    for name in ("build", "core", "test", "dev", "docs", "spark"):
        for distribution, version in pins(name).items():
            assert seen.setdefault(distribution, version) == version, distribution


def test_alerts_name_metrics_that_exist() -> None:
    """A rule on a metric that is never exposed stays silent for ever."""
    body, _ = Metrics().exposition()
    exposed = set(re.findall(r"^# TYPE (\w+) ", body.decode(), re.MULTILINE))
    asked = set(re.findall(r"\bbookie_\w+", text("conf/prometheus/alerts.yml")))
    assert asked
    assert {re.sub(r"_bucket$", "", name) for name in asked} <= exposed


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
