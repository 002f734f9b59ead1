"""Settings from defaults < TOML file < environment < flags, or one sentence with what is wrong.

A file holds one table per section. The variable ``BOOKIE_STORAGE__READ_THREADS`` sets the key
``storage.read_threads``; names without a double underscore are other people's (Kubernetes sets
``BOOKIE_PORT`` for a service called bookie), except ``BOOKIE_METADATA``, the short name of
``BOOKIE_METADATA__URI`` that the command line knows too, and ``BOOKIE_CONFIG``, the file to read
when no other is given. Flags are the `overrides` of the caller.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bookie.config.section import Section
from bookie.config.sections import Settings
from bookie.errors import ConfigurationError

PREFIX = "BOOKIE_"
DELIMITER = "__"
METADATA_VARIABLE = "BOOKIE_METADATA"
CONFIG_VARIABLE = "BOOKIE_CONFIG"


@dataclass(frozen=True, slots=True)
class _Given:
    """One value that somebody set, and where, as the sentence of an error names it."""

    section: str
    key: str
    value: object
    origin: str


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read, merge and check the settings of one process.

    Args:
        path: A TOML file; None reads the one that BOOKIE_CONFIG names, or none.
        overrides: Flags, `section.key` → text. They win over everything.
        environment: Variables; the process's own when None.

    Raises:
        ConfigurationError: In one sentence: a key is unknown, a value or a relation between values
            is wrong, or the file cannot be read. Never echoes a value that may be a secret.
    """
    variables = os.environ if environment is None else environment
    if path is None and variables.get(CONFIG_VARIABLE):
        path = Path(variables[CONFIG_VARIABLE])
    given: dict[tuple[str, str], _Given] = {}
    for source in (_from_file(path), _from_environment(variables), _from_flags(overrides or {})):
        for item in source:
            field = _field_of(item)
            _refuse_flag_for_number(item, field)
            given[item.section, item.key] = item
    tables: dict[str, dict[str, object]] = {}
    for (section, key), item in given.items():
        tables.setdefault(section, {})[key] = item.value
    try:
        return Settings.model_validate(tables)
    except ValidationError as error:
        raise ConfigurationError(_sentence(error, given)) from None


def require_bookie_id(settings: Settings) -> None:
    """Refuse settings that do for a client but not for a bookie.

    Raises:
        ConfigurationError: the bookie has no name.
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"{path}: {section} stands outside a section; write it below [SECTION]"
            )
        _check_section(section, str(path))
        for key, value in table.items():
            yield _Given(section, key, value, str(path))


def _from_environment(variables: Mapping[str, str]) -> Iterator[_Given]:
    if METADATA_VARIABLE in variables:
        yield _Given("metadata", "uri", variables[METADATA_VARIABLE], METADATA_VARIABLE)
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
    """The class of the section called `name`."""
    annotation = Settings.model_fields[name].annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, Section)
    return annotation


def _refuse_flag_for_number(item: _Given, field: FieldInfo) -> None:
    """``port = true`` would otherwise become port 1."""
    if isinstance(item.value, bool) and field.annotation is not bool:
        raise ConfigurationError(
            f"{item.origin}: {item.section}.{item.key} must not be true or false"
        )


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _sentence(error: ValidationError, given: Mapping[tuple[str, str], _Given]) -> str:
    """The first problem, with the key and the place where its value was set."""
    problem = error.errors(include_url=False, include_input=False)[0]
    text = problem["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    match problem["loc"]:
        case (str(section), str(key), *_):
            origin = given[section, key].origin if (section, key) in given else "default"
            return f"{origin}: {section}.{key}: {text}"
        case (str(section),):
            return f"{section}: {text}"
        case _:
            return text
