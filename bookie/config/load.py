"""Loads settings: defaults < cluster < TOML file < environment < flags; an error is one sentence.

A file holds one table per section. The variable ``BOOKIE_STORAGE__READ_THREADS`` sets the key
``storage.read_threads``. If the caller names no file, ``BOOKIE_CONFIG`` names the file to read.
``BOOKIE_METADATA`` names the metadata store for the commands of a shell; a file overrides this
variable. A bookie refuses to start if ``BOOKIE_METADATA`` and its settings file name different
stores. The module `environment` checks all other names of variables. Callers pass flags as
`overrides`. Callers read the cluster settings from the metadata store, and pass them as a mapping.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bookie.config.deprecation import warn_deprecated
from bookie.config.environment import (
    CONFIG_VARIABLE,
    DELIMITER,
    METADATA_VARIABLE,
    PREFIX,
    check_variables,
)
from bookie.config.section import Section, is_own
from bookie.config.sections import LogFormat, Settings
from bookie.errors import ConfigurationError

_FORMAT_VARIABLE = PREFIX + "LOG" + DELIMITER + "FORMAT"

NO_CLUSTER: Mapping[str, str] = {}

_Problem: TypeAlias = Mapping[str, Any]
"""An error as pydantic reports it: `loc` names the setting, `msg` is the error sentence."""


@dataclass(frozen=True, slots=True)
class _Given:
    """The value of one setting from one source; `origin` is the source's name in errors."""

    section: str
    key: str
    value: object
    origin: str
    by_cluster: bool = False
    by_file: bool = False

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"


_AllGiven: TypeAlias = Mapping[tuple[str, str], _Given]


class Sources:
    """The values from the file, the environment and the flags of one process, read only once.

    Cluster settings override the defaults, and the values of this object override cluster settings.
    Cluster settings may change while the process runs, so each call of `settings` gets the cluster
    settings as an argument.
    """

    def __init__(
        self,
        given: _AllGiven,
        short_uri: str | None = None,
        unknown_variables: Mapping[str, str] | None = None,
    ) -> None:
        self._given = given
        self._short_uri = short_uri
        self.unknown_variables = dict(unknown_variables or {})
        """The unknown variables that `check_variables` found, with the most similar known names."""

    @classmethod
    def read(
        cls,
        path: Path | None = None,
        overrides: Mapping[str, str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Read the file and the environment; arguments and errors are those of `load_settings`."""
        variables = os.environ if environment is None else environment
        if path is None and variables.get(CONFIG_VARIABLE):
            path = Path(variables[CONFIG_VARIABLE])
        given = _last_of(
            _from_short_name(variables),
            _from_file(path),
            _from_environment(variables),
            _from_flags(overrides or {}),
        )
        return cls(given, variables.get(METADATA_VARIABLE), check_variables(variables))

    def settings(self, cluster: Mapping[str, str] = NO_CLUSTER) -> Settings:
        """Merge the settings of all sources and check them.

        Args:
            cluster: Cluster settings, `section.key` → text. The values of this object override
                cluster settings.

        Raises:
            ConfigurationError: as in `load_settings`.
        """
        given = self._with(cluster)
        try:
            return Settings.model_validate(_tables(given))
        except ValidationError as error:
            raise ConfigurationError(_sentence(_problems(error)[0], given)) from None

    def first_settings(self) -> Settings:
        """Return the settings without cluster settings, to connect to the metadata store.

        Settings may contradict each other in a way that cluster settings can correct. If there is
        such a contradiction, only the sections ``bookie``, ``metadata`` and ``log`` keep their
        given values, and all other sections have their defaults.

        Raises:
            ConfigurationError: there is an error that no cluster setting can correct.
        """
        given = self._given
        try:
            return Settings.model_validate(_tables(given))
        except ValidationError as error:
            for problem in _problems(error):
                if not _is_mendable(problem):
                    raise ConfigurationError(_sentence(problem, given)) from None
        sound = {place: item for place, item in given.items() if item.section in _FIRST_SECTIONS}
        return Settings.model_validate(_tables(sound))

    def require_one_store(self) -> None:
        """Refuse the variable BOOKIE_METADATA if the file names another store.

        Raises:
            ConfigurationError: the two stores differ, and neither a flag nor BOOKIE_METADATA__URI
                overrides both. The error contains no address, because BOOKIE_METADATA was not
                checked for secrets.
        """
        used = self._given.get(("metadata", "uri"))
        if self._short_uri is None or used is None or not used.by_file:
            return
        if used.value != self._short_uri:
            raise ConfigurationError(
                f"{METADATA_VARIABLE} and metadata.uri in {used.origin} name different stores;"
                " remove one of them, or give --metadata"
            )

    def origins(self, cluster: Mapping[str, str] = NO_CLUSTER) -> dict[str, str]:
        """Return the source of each value that does not come from the defaults.

        The result maps `section.key` to the name of the source.
        """
        return {item.name: item.origin for item in self._with(cluster).values()}

    def _with(self, cluster: Mapping[str, str]) -> _AllGiven:
        return {**_last_of(_from_cluster(cluster)), **self._given} if cluster else self._given


_FIRST_SECTIONS = ("bookie", "metadata", "log")


def _last_of(*sources: Iterator[_Given]) -> _AllGiven:
    """Merge the values of several sources; each source overrides all earlier sources."""
    given: dict[tuple[str, str], _Given] = {}
    for source in sources:
        for item in source:
            field = _field_of(item)
            _refuse_flag_for_number(item, field)
            if item.by_cluster and (section_type(item.section).own or is_own(field)):
                raise ConfigurationError(
                    f"{item.origin}: each process has its own {item.name}; it cannot be set for a"
                    " cluster"
                )
            is_path = field.annotation is Path or item.key.endswith("_file")
            given[item.section, item.key] = (
                replace(item, value=_absolute(item)) if is_path else item
            )
    return given


def _absolute(item: _Given) -> object:
    """Return the path in a setting as an absolute path.

    A relative path in a settings file is relative to the folder of this file, so a bookie finds its
    directories from any working directory. In a variable, flag or cluster setting, a path is
    relative to the working directory.

    In earlier versions, paths in files were also relative to the working directory. If a path
    exists only relative to the working directory, the function returns this path and warns that
    this use is deprecated. Paths in the section ``[security]`` of a file are never relative to the
    working directory, because this directory must not determine which peers are trusted.
    """
    text = item.value
    if not isinstance(text, str) or not text:
        return text
    here = os.path.abspath(text)
    if not item.by_file:
        return here
    beside = os.path.abspath(os.path.join(os.path.dirname(item.origin), text))
    if item.section == "security":
        return beside
    # A cookie shows that a bookie uses the directory: each directory has one after the first start.
    proof = "" if item.key.endswith("_file") else "/COOKIE"
    if os.path.exists(beside + proof) or not os.path.exists(here + proof):
        return beside
    warn_deprecated(
        f"{item.name} = {text!r} in {item.origin}, found below the working directory,",
        since="0.1.0",
        removal="0.3.0",
        instead=f"{here!r}",
    )
    return here


def _tables(given: _AllGiven) -> dict[str, dict[str, object]]:
    tables: dict[str, dict[str, object]] = {}
    for (section, key), item in given.items():
        tables.setdefault(section, {})[key] = item.value
    return tables


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read, merge and check the settings of one process, without cluster settings.

    Args:
        path: A TOML file. None means the file that BOOKIE_CONFIG names; without this variable, no
            file is read.
        overrides: Flags, `section.key` → text. Flags override all other sources.
        environment: The environment variables; None means the variables of the process.

    Raises:
        ConfigurationError: A key is unknown, a value is wrong, values contradict each other, or the
            file is unreadable. The message is one sentence, and contains no value that may be a
            secret.
    """
    return Sources.read(path, overrides, environment=environment).settings()


def find_log_format(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> LogFormat:
    """Return ``log.format`` even if other settings are wrong, so that errors can use this format.

    The arguments mean the same as in `load_settings`. The function ignores a wrong ``log.format``.
    """
    variables = os.environ if environment is None else environment
    path = path or Path(variables.get(CONFIG_VARIABLE, ""))
    given: list[object] = []
    with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
        given.append(tomllib.loads(path.read_text(encoding="utf-8"))["log"]["format"])
    given += [variables.get(_FORMAT_VARIABLE), (overrides or {}).get("log.format")]
    known = [text for text in given if text in get_args(LogFormat)]
    return "console" if known and known[-1] == "console" else Settings().log.format


def check_cluster_settings(cluster: Mapping[str, str]) -> None:
    """Check that these cluster settings are valid, together with the defaults of all others.

    Raises:
        ConfigurationError: a cluster setting is wrong; the message names the setting.
    """
    Sources({}).settings(cluster)


def require_bookie_id(settings: Settings) -> None:
    """Check that the settings of a bookie contain the bookie's id; clients need no id.

    Raises:
        ConfigurationError: the settings contain no bookie id.
    """
    if not settings.bookie.id:
        raise ConfigurationError("bookie.id must be set: the name of this bookie in its cluster")


def _from_file(path: Path | None) -> Iterator[_Given]:
    if path is None:
        return
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"{path}: {section} is outside of a section; write it below [SECTION]"
            )
        _check_section(section, str(path))
        for key, value in table.items():
            yield _Given(section, key, value, str(path), by_file=True)


def _from_short_name(variables: Mapping[str, str]) -> Iterator[_Given]:
    if METADATA_VARIABLE in variables:
        yield _Given("metadata", "uri", variables[METADATA_VARIABLE], METADATA_VARIABLE)


def _from_environment(variables: Mapping[str, str]) -> Iterator[_Given]:
    for name in sorted(variables):
        section, delimiter, key = name.removeprefix(PREFIX).lower().partition(DELIMITER)
        if name.startswith(PREFIX) and section and delimiter:
            _check_section(section, name)
            yield _Given(section, key, variables[name], name)


def _from_flags(overrides: Mapping[str, str]) -> Iterator[_Given]:
    for name, value in overrides.items():
        section, _, key = name.partition(".")
        _check_section(section, f"flag {name}")
        yield _Given(section, key, value, f"flag {name}")


def _from_cluster(settings: Mapping[str, str]) -> Iterator[_Given]:
    for name, value in sorted(settings.items()):
        section, _, key = name.partition(".")
        _check_section(section, f"cluster setting {name}")
        yield _Given(section, key, value, f"cluster setting {name}", by_cluster=True)


def _check_section(section: str, origin: str) -> None:
    if section not in Settings.model_fields:
        hint = _hint(section, list(Settings.model_fields))
        raise ConfigurationError(f"{origin}: unknown section [{section}]{hint}")


def _field_of(item: _Given) -> FieldInfo:
    fields = section_type(item.section).model_fields
    if item.key not in fields:
        hint = _hint(item.key, list(fields))
        raise ConfigurationError(f"{item.origin}: unknown setting {item.section}.{item.key}{hint}")
    return fields[item.key]


def section_type(name: str) -> type[Section]:
    """Return the class of the section called `name`."""
    annotation = Settings.model_fields[name].annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, Section)
    return annotation


def _refuse_flag_for_number(item: _Given, field: FieldInfo) -> None:
    """Refuse true and false for a setting that is not a bool; ``port = true`` would mean port 1."""
    if isinstance(item.value, bool) and field.annotation is not bool:
        raise ConfigurationError(
            f"{item.origin}: {item.section}.{item.key} must not be true or false"
        )


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _is_mendable(problem: _Problem) -> bool:
    """True if cluster settings may correct `problem`, a contradiction between several values."""
    place = problem["loc"]
    return not place or (len(place) == 1 and not section_type(str(place[0])).own)


def _problems(error: ValidationError) -> list[_Problem]:
    return [*error.errors(include_url=False, include_input=False)]


def _sentence(problem: _Problem, given: _AllGiven) -> str:
    """Return the error as a sentence that names the setting and the source of its value."""
    text: str = problem["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    match problem["loc"]:
        case (str(section), str(key), *_):
            origin = given[section, key].origin if (section, key) in given else "default"
            return f"{origin}: {section}.{key}: {text}"
        case (str(section),):
            return f"{section}: {text}" + _part_of_cluster(text, given, section)
        case _:
            return text + _part_of_cluster(text, given)


def _part_of_cluster(text: str, given: _AllGiven, section: str = "") -> str:
    """Return, in parentheses, the cluster settings that the error text names; empty if none.

    An operator needs these names, because the bookie's file does not contain cluster settings.
    """
    words = set(text.replace(",", " ").split())
    found = [
        item.origin
        for item in given.values()
        if item.by_cluster
        and (item.key in words if item.section == section else item.name in words)
    ]
    return f" (with {', '.join(found)})" if found else ""
