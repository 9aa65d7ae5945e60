"""Advice about unknown `GPUWARD_` variables: a typing error would leave a setting at its default."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from schemas.variable_names import VARIABLES

_PREFIX: Final = "GPUWARD_"
_LONGEST: Final = 100
# Kubernetes and Docker describe services, of any name, by such variables.
_OF_A_SERVICE: Final = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINK: Final = re.compile(r"(tcp|udp|sctp)://.*")


def unknown_variables(environ: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Advice for each unknown variable, sorted by name.

    `environ`: names and values. Settings are read in any case.
    """
    unknown = sorted(name for name, value in environ if _is_unknown(name.upper(), value))
    return {name[:_LONGEST]: _advice(name.upper()) for name in unknown}


def _is_unknown(name: str, value: str) -> bool:
    if not name.startswith(_PREFIX) or name in VARIABLES:
        return False
    return not _OF_A_SERVICE.fullmatch(name) and not (name.endswith("_PORT") and _LINK.fullmatch(value))


def _advice(name: str) -> str:
    suffixes = {known.removeprefix(_PREFIX): known for known in VARIABLES}
    close = get_close_matches(name.removeprefix(_PREFIX)[:_LONGEST], suffixes, n=1, cutoff=0.6)
    return f"did you mean {suffixes[close[0]]}?" if close else "the page 'Settings' of the documentation lists all"
