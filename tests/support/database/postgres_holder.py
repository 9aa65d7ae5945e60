"""Runs a controller's embedded database alone: `python postgres_holder.py DATA_DIR`.

It prints one line of JSON, `{"pid": server's, "dsn": ...}` or `{"error": ...}`, and holds the server until its
standard input ends.
"""

import asyncio
import json
import sys
from pathlib import Path

import structlog
import uvloop

from controller.store.embedded import EmbeddedPostgres, EmbeddedPostgresError


async def hold(data_dir: Path) -> None:
    try:
        async with EmbeddedPostgres(data_dir) as server:
            _say({"pid": server.pid, "dsn": server.dsn})
            await asyncio.to_thread(sys.stdin.read)
    except EmbeddedPostgresError as error:
        _say({"error": str(error)})


def _say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    uvloop.run(hold(Path(sys.argv[1])))
