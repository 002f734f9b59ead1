"""Checks the names of environment variables that begin with ``BOOKIE_``, to find misspellings.

A variable ``BOOKIE_SECTION__KEY`` gives the value of a setting; `load` checks these variables. A
name with only one underscore between the section and the key of a setting is an error. Any other
unknown name may belong to another program, so this module only reports the name. Kubernetes sets
variables for a service whose name begins with bookie; this module ignores these variables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from bookie.config.sections import Settings
from bookie.config.supervision import FAILPOINT_VARIABLE
from bookie.errors import ConfigurationError

PREFIX = "BOOKIE_"
DELIMITER = "__"
METADATA_VARIABLE = "BOOKIE_METADATA"
CONFIG_VARIABLE = "BOOKIE_CONFIG"
DEBUG_VARIABLE = "BOOKIE_DEBUG"

_KNOWN = (METADATA_VARIABLE, CONFIG_VARIABLE, DEBUG_VARIABLE, FAILPOINT_VARIABLE)
_TEST_PREFIX = "BOOKIE_TEST_"

_OF_SERVICES = re.compile(
    r"BOOKIE_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
"""Matches the addresses that Kubernetes gives to ``BOOKIE_…PORT``; a bookie's port is only a
number."""


def check_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return each unknown variable that begins with ``BOOKIE_``, with the most similar known name.

    If no known name is similar to a variable, the result maps the variable to an empty text.

    Raises:
        ConfigurationError: a variable has one underscore instead of two between section and key.
    """
    unknown = [
        name
        for name, value in sorted(variables.items())
        if name.startswith(PREFIX) and not _is_known(name) and not _is_of_service(name, value)
    ]
    if not unknown:
        return {}
    right = {PREFIX + f"{s}_{k}".upper(): PREFIX + f"{s}{DELIMITER}{k}".upper() for s, k in _all()}
    for name in unknown:
        if name in right:
            raise ConfigurationError(f"{name}: unknown variable; did you mean {right[name]}?")
    candidates = [*right, *_KNOWN]
    return {name: _closest(name, candidates, right) for name in unknown}


def _all() -> list[tuple[str, str]]:
    return [(section, key) for section, default in Settings() for key in type(default).model_fields]


def _is_known(name: str) -> bool:
    is_setting = DELIMITER in name.removeprefix(PREFIX)
    return is_setting or name in _KNOWN or name.startswith(_TEST_PREFIX)


def _is_of_service(name: str, value: str) -> bool:
    is_address = name.endswith("_PORT") and _ADDRESS.match(value)
    return bool(is_address or _OF_SERVICES.fullmatch(name))


def _closest(name: str, candidates: list[str], right: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.8)
    return right.get(close[0], close[0]) if close else ""
