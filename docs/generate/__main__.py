"""Writes the reference pages of docs/ from the code.

make reference                 writes the pages
make reference ARGS=--check    only shows whether they are up to date
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import alerts_page
import cli_page
import faults_page
import manifest_page
import metrics_page
import privileged_page
import reason_codes_page
import requests_page
import settings_page
import states_page
import variable_names

DOCS: Final = Path(__file__).resolve().parent.parent
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "../schemas/variable_names.py": variable_names.page,
    "alerts.md": alerts_page.page,
    "cli.md": cli_page.page,
    "faults.md": faults_page.page,
    "manifest.md": manifest_page.page,
    "metrics.md": metrics_page.page,
    "privileged.md": privileged_page.page,
    "reason-codes.md": reason_codes_page.page,
    "requests.md": requests_page.page,
    "settings.md": settings_page.page,
    "states.md": states_page.page,
}


def main() -> int:
    """Writes the pages, or with --check compares them."""
    parser = argparse.ArgumentParser(description="The reference pages of docs/, from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is not up to date")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path, made = DOCS / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == made:
            continue
        stale.append(name)
        if not check:
            path.write_text(made, encoding="utf-8")
    if check and stale:
        print(f"not up to date: {', '.join(stale)}: run `make reference`")
        return 1
    print(f"wrote {', '.join(stale)}" if stale else "up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
