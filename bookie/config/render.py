"""Renders settings as a TOML file with explanations, which `load_settings` can read again."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from bookie.config.load import section_type
from bookie.config.quantities import format_size, parse_size
from bookie.config.section import Section, is_dynamic
from bookie.config.sections import Settings

HEAD = """\
# Settings of a bookie. Every key is listed; a key that you leave out has its default.
# A later source overrides an earlier one: `bookie cluster settings`, this file, a variable
# BOOKIE_SECTION__KEY, a flag.
# Sizes are bytes, or have a unit: "64KiB", "256MiB", "1GiB".
# A path that is not absolute begins at the folder of this file; elsewhere than in a file it begins
# at the working directory.
# BOOKIE_METADATA names the metadata store if this file does not. If both name one, the bookie does
# not start.
# An unknown key is an error at start-up. A running bookie takes a new cluster setting within a
# second if it is marked as dynamic. Otherwise it takes it at its next start.
"""

DEFAULTS_HEAD = (
    HEAD
    + """\
# All keys are commented out, so the settings of the cluster count. Uncomment what you change.
"""
)


def render_toml(settings: Settings) -> str:
    """Return a TOML file with all settings; comments give each key's meaning and default.

    The text shows asterisks instead of secrets.
    """
    return _render(settings, HEAD, "")


def render_defaults() -> str:
    """Return a template of a TOML file, in which all keys have their defaults as comments."""
    return _render(Settings(), DEFAULTS_HEAD, "#")


@dataclass(frozen=True, slots=True)
class SettingFact:
    """The facts about a setting: its default, and whether a running bookie accepts a new value."""

    default: str
    """The default, spelled as in a TOML file."""
    dynamic: bool
    """True if a running bookie accepts a new value."""


def find_setting(name: str) -> SettingFact | None:
    """Return the facts about the setting ``section.key``, or None for an unknown setting."""
    section, _, key = name.partition(".")
    if section not in Settings.model_fields:
        return None
    field = section_type(section).model_fields.get(key)
    return None if field is None else SettingFact(_value(field, field.default), is_dynamic(field))


def given_values(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Return the values of the settings `names`, spelled as in a TOML file.

    The result maps ``section.key`` to the value's text.
    """
    values = {}
    for name in names:
        section, _, key = name.partition(".")
        field = section_type(section).model_fields[key]
        values[name] = _value(field, getattr(getattr(settings, section), key))
    return values


def _render(settings: Settings, head: str, before_key: str) -> str:
    parts = [head]
    for name in Settings.model_fields:
        section: Section = getattr(settings, name)
        about = inspect.cleandoc(section_type(name).__doc__ or "").replace("\n\n", "\n")
        parts.append(f"\n{_comment(about)}[{name}]\n")
        for key, field in type(section).model_fields.items():
            default = _value(field, field.default)
            text = f"{field.description} Default:\N{NO-BREAK SPACE}{default}."
            text += " Dynamic." if is_dynamic(field) else ""
            value = _value(field, getattr(section, key))
            parts.append(f"{_comment(text)}{before_key}{key} = {value}\n")
    return "".join(parts)


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines).replace("\N{NO-BREAK SPACE}", " ")


def _value(field: FieldInfo, value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() if _is_size(field) and value:
            return f'"{format_size(value)}"'
        case int() | float():
            return repr(value)
        case Mapping():
            items = (f"{json.dumps(name)} = {json.dumps(text)}" for name, text in value.items())
            inner = ", ".join(items)
            return f"{{ {inner} }}" if inner else "{}"
        case str() | Path():
            # A JSON string with its escapes is also a TOML basic string, except for DEL.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case SecretStr() if not value.get_secret_value():
            return '""'
        case _:
            return '"********"'


def _is_size(field: FieldInfo) -> bool:
    return any(getattr(mark, "func", None) is parse_size for mark in field.metadata)
