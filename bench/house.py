"""The size of the sources: lines by room, files with one importer, import cycles, and files that a request enters.

Lines are all lines of a file. A room is a folder, without those in it. Packages are `controller`, `gateway`, `agent`,
`http1`, `schemas` and `cli`; tests, tools (`bench`, `deploy`, `docs`) and the dashboard's sources count apart.

A lone file is imported by one other file of the packages, also by an import in a function or for types; a lone sibling
by a file of its own folder. A circle is a group of modules of which each reaches all others: by imports that run while
a module is imported; with those in functions; with those under `TYPE_CHECKING`. Names decide, as in `house_sources.py`.

A way is traced with `sys.setprofile` in one process: API, gateway and reconcilers over a real PostgreSQL, clients and
agents as stand-ins. A file is entered when a function of it is called. A change of room is a call in another folder
than the call before it; each resumption of a coroutine is a call. Of several runs the files that all entered count, and
the changes of the run with the fewest, since the servers' own sweeps may fall into a run. Those of an apply differ
by up to 2 % from one start of the bench to the next, as its data arrives; all else is the same each time.

- an apply: `POST /api/v1/apply` of one new deployment, from the gateway's port until its answer
- a warm chat request: a small one, after twenty; through the gateway to a stand-in for an agent
- a term's first step: of workers, cancelling, instances and placement, over a new deployment, until its claims are
  committed; a later step: the same for the next deployment of that term

    make bench-house        (or: PYTHONPATH=tests python bench/house.py --list, or --json)
"""

import argparse
import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any

import structlog

from house_sources import PACKAGES, TESTS, TOOLS, Imports, Room, dashboard_rooms, rooms
from house_ways import Way, measured_ways
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer, running_server


def figures(imports: Imports, ways: Iterable[Way]) -> dict[str, Any]:
    siblings = [lone for lone in imports.lone if lone.sibling]
    return {
        "lines": {
            name: {"files": sum(room.files for room in measured), "lines": sum(room.lines for room in measured)}
            for name, measured in _parts().items()
        },
        "rooms": {room.name: {"files": room.files, "lines": room.lines} for room in rooms(PACKAGES)},
        "lone_files": {"files": len(imports.lone), "lines": sum(lone.lines for lone in imports.lone)},
        "lone_siblings": {"files": len(siblings), "lines": sum(lone.lines for lone in siblings)},
        "circles": {
            "at import": imports.circles("top"),
            "with functions": imports.circles("top", "function"),
            "with types": imports.circles("top", "function", "typing"),
        },
        "ways": {
            way.name: {
                "files": len(way.files),
                "in": {package: way.within(package) for package in PACKAGES if way.within(package)},
                "room_changes": way.changes,
                "calls": way.calls,
            }
            for way in ways
        },
    }


def _parts() -> dict[str, list[Room]]:
    return {
        "packages": rooms(PACKAGES),
        "tests": rooms(TESTS),
        "tools": rooms(TOOLS),
        "dashboard": dashboard_rooms(),
    }


def show(measured: dict[str, Any]) -> None:
    print(f"{'room':48} files  lines")
    for name, of_room in measured["rooms"].items():
        print(f"{name:48} {of_room['files']:5} {of_room['lines']:6}")
    print()
    for name, of_part in measured["lines"].items():
        print(f"all of {name:41} {of_part['files']:5} {of_part['lines']:6}")
    print(f"{'files with one importer':48} {measured['lone_files']['files']:5} {measured['lone_files']['lines']:6}")
    siblings = measured["lone_siblings"]
    print(f"{'  which is in the same room':48} {siblings['files']:5} {siblings['lines']:6}")
    print()
    for name, circles in measured["circles"].items():
        print(f"circles {name:40} {len(circles):5} {', '.join(f'of {len(circle)}' for circle in circles)}")
        for circle in circles if name != "with types" else []:
            print(f"  {' '.join(circle)}")
    print(f"\n{'way':22} files  room changes  calls  files by package")
    for name, way in measured["ways"].items():
        by_package = ", ".join(f"{package} {count}" for package, count in way["in"].items())
        print(f"{name:22} {way['files']:5} {way['room_changes']:13} {way['calls']:6}  {by_package}")


def show_lone(imports: Imports) -> None:
    for lone in sorted(imports.lone, key=lambda lone: lone.file):
        print(f"{lone.lines:5} {'sibling' if lone.sibling else '       '} {lone.file} <- {lone.importer}")


async def measure(server: PostgresServer, template: str) -> list[Way]:
    async with migrated_database(server, template) as database, migrated_database(server, template) as empty:
        return await measured_ways(database, empty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--list", action="store_true", help="the files with one importer, and nothing else")
    given = parser.parse_args()
    imports = Imports()
    if given.list:
        show_lone(imports)
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with running_server() as server:
        ways = asyncio.run(measure(server, migrated_template(server)))
    measured = figures(imports, ways)
    if given.json:
        print(json.dumps(measured, indent=2))
    else:
        show(measured)


if __name__ == "__main__":
    main()
