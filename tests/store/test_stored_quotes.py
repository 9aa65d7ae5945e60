"""The migration that marks lines of logs in what an earlier version has stored."""

from pathlib import Path

from controller.domain.access.redaction import BEGIN, END
from controller.domain.events import NewEvent
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.migrations import versions
from support.database.ledger import add_deployment, add_host, add_instance, claim, report

SQL = (Path(versions.__path__[0]) / "0026_quoted_lines.sql").read_text(encoding="utf-8")
CASES = {
    "exited with code 1: KeyError: 'a'; restarts in 10 s": "exited with code 1: [KeyError: 'a']; restarts in 10 s",
    "was killed by signal 9: Loading; restarts in 1 s": "was killed by signal 9: [Loading]; restarts in 1 s",
    "ended unexpectedly, with exit code 0": "ended unexpectedly, with exit code 0",
    "2 instances crash: exited with code 2: usage: a": "2 instances crash: exited with code 2: [usage: a]",
    "no worker fits: 3 of 4 lack memory": "no worker fits: 3 of 4 lack memory",
}


async def test_lines_of_logs_are_marked_in_what_is_stored(migrated: Database) -> None:
    db = migrated
    host = await add_host(db, "w", gpus=1, gib=8)
    uid = await add_deployment(db, "d")
    for number, message in enumerate(CASES):
        await add_instance(db, uid, f"i{number}", epoch=1)
        await claim(db, host.gpus[0], f"i{number}", 1024)
        await report(db, f"i{number}", "exited")
        async with db.transaction() as connection:
            await connection.execute("update instances set message = $1 where id = $2", message, f"i{number}")
            await write_events(connection, [NewEvent("backoff", message, (f"instance:i{number}",))])
    async with db.transaction() as connection:
        await connection.execute("update processes set reason = 'exit', message = 'KeyError' where instance_id = 'i0'")
        await connection.execute("update processes set reason = 'stopped', message = 'asked' where instance_id = 'i1'")
        for statement in SQL.split("--;;"):
            await connection.execute(statement)
        expected = [kept.replace("[", BEGIN).replace("]", END) for kept in CASES.values()]
        for query in ("select message from instances order by id", "select message from events order by id"):
            assert [row["message"] for row in await connection.fetch(query)] == expected
        found = await connection.fetch("select message from processes where message <> '' order by instance_id")
        assert [row["message"] for row in found] == [f"{BEGIN}KeyError{END}", "asked"]
