"""docs/faults.md: what breaks, what is expected then, and the tests that assert it, from docs/faults.yaml."""

from pathlib import Path
from typing import Any, Final

import yaml

from tables import code, table

SOURCE: Final = Path(__file__).resolve().parent.parent / "faults.yaml"
HEAD: Final = """\
# Faults

<!-- Written by `make reference` from docs/faults.yaml. Do not edit. -->

What Gpuward guarantees when something breaks, and the tests that assert it. In each case nothing is lost or done twice,
nothing that is wanted stops, the audit of the ledger is clean, and an event or a condition reports what happened. Most
of the tests run real processes and a real PostgreSQL.
"""
FOOT: Final = """\
Of case 49, messages of protocols 3 to 5 are recorded and replayed. Both versions that speak only protocol 3 run
against the present one, and so does the agent of the last one that spoke protocol 4. Case 39 is tested with a stream
of seconds, not of half an hour.
"""


def faults() -> list[dict[str, Any]]:
    """All cases, in order."""
    found: list[dict[str, Any]] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return found


def page() -> str:
    """The whole page."""
    rows = [
        (str(one["number"]), one["fault"], one["expected"], " ".join(map(code, one["tests"])) or one["no_test_yet"])
        for one in faults()
    ]
    return "\n".join([HEAD, *table(("#", "fault", "expected", "asserted by"), rows), FOOT])
