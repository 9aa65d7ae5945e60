"""Prints the API's OpenAPI document, of which the dashboard's types are made."""

import json
import sys

from controller.api.app import all_routes
from controller.api.openapi import describe


def main() -> None:
    """Writes to stdout. The version is left out: types do not change with it."""
    json.dump(describe([route for route in all_routes("") if route.tag != "openapi"], ""), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
