"""Names of keys are shown in terminals, logs and tables: each is one line that prints as it is."""

import pytest
from pydantic import ValidationError

from schemas.api.requests import KeyBody, KeyUpdateBody

CONTROLS = ["\x1b[31mred", "a\nb", "a\tb", "a\rb", "\x00", "a\x7fb", "a\x85b", "a\u2028b", "a\u202eb", "\u200b"]


@pytest.mark.parametrize("name", ["ci", "Team A: nightly", "équipe", "日本", "a-b_c.d/e@f"])
def test_printable_names_are_taken(name: str) -> None:
    assert KeyBody(role="viewer", name=name).name == name
    assert KeyUpdateBody(name=name).name == name


@pytest.mark.parametrize("name", CONTROLS)
def test_control_characters_are_refused(name: str) -> None:
    for refuse in (lambda: KeyBody(role="viewer", name=name), lambda: KeyUpdateBody(name=name)):
        with pytest.raises(ValidationError, match="name"):
            refuse()
