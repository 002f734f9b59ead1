"""Arguments of public calls that are of another type."""

from __future__ import annotations

import pytest

from bookie.env.checked import checked
from bookie.errors import BadRequestError


@checked
def call(*, password: bytes = b"", name: bytes = b"") -> bytes:
    return password + name


@pytest.mark.parametrize("value", ["secret", 53, 5.3])
def test_a_password_of_another_type_is_not_shown(value: object) -> None:
    """Whoever forgets that a password is bytes finds it in his log otherwise."""
    with pytest.raises(BadRequestError) as caught:
        call(password=value)  # type: ignore[arg-type]
    assert str(caught.value) == f"password must be bytes, not {type(value).__name__}"
    with pytest.raises(BadRequestError) as caught:
        call(name=value)  # type: ignore[arg-type]
    assert str(caught.value) == f"name must be bytes, not {value!r}"
