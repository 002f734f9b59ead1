"""The base class of all sections of settings, and the properties *dynamic* and *own* of settings.

A setting is *dynamic* if a running bookie accepts a new value without a restart. A setting is a
bookie's *own* if it cannot be a cluster setting.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

DYNAMIC: JsonDict = {"dynamic": True}
"""Mark for `Field(json_schema_extra=…)` of a dynamic setting; the component reads such a setting
repeatedly.
"""

OWN: JsonDict = {"own": True}
"""Mark for `Field(json_schema_extra=…)` of a setting that cannot be a cluster setting."""


class Section(BaseModel):
    """The base class of all sections; a section is immutable and refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    own: ClassVar[bool] = False
    """True if no setting of the section may be a cluster setting."""

    def _at_most(self, lower: str, upper: str) -> None:
        """Raise ValueError if the field `lower` is greater than the field `upper`."""
        if getattr(self, lower) > getattr(self, upper):
            raise ValueError(f"{lower} must be at most {upper}")


def is_dynamic(field: FieldInfo) -> bool:
    """True if a running bookie accepts a new value of the setting."""
    return _says(field, "dynamic")


def is_own(field: FieldInfo) -> bool:
    """True if the setting has the mark *own*, so the setting cannot be a cluster setting."""
    return _says(field, "own")


def _says(field: FieldInfo, mark: str) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get(mark) is True
