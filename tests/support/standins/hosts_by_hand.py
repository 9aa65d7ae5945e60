"""All hosts and their hub, without a wire: they take, answer and report commands by the hub's own statements."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from controller.store.core.database import Database
from controller.store.core.events import notify
from controller.store.deployments.commands import Answer, DueCommand, Target, take_due, write_answers
from controller.store.deployments.processes import SessionReport, lock_sessions, write_reports
from schemas.wire import ProcessReport
from support.database.ledger import rows

Key = tuple[str, int, int]  # instance, epoch, rank
SESSION = 1
_TARGETS = """
    select w.id from workers w join worker_liveness l on l.worker_id = w.id
     where l.connected and w.session = 1 and w.deleted_at is null"""


@dataclass
class Hosts:
    """What runs on all hosts. `behaviours`: how a deployment's next processes behave; by default they run."""

    db: Database
    running: dict[Key, dict[str, bool]] = field(default_factory=dict)  # devices, and whether exclusive
    behaviours: dict[str, list[str]] = field(default_factory=dict)  # "exit", "refuse", "fetch"
    away: bool = False  # no host takes commands
    at_once: int = 100  # commands that each host takes at once
    _seq: int = 0

    async def run_commands(self) -> bool:
        """Takes due commands, carries them out and reports; whether there were any."""
        if self.away:
            return False
        sent_before = datetime.now(UTC) - timedelta(days=1)
        async with self.db.transaction() as connection:
            workers = [str(row["id"]) for row in await connection.fetch(_TARGETS)]
            due = await take_due(connection, [Target(w, SESSION, sent_before) for w in workers], self.at_once)
        if not due.commands:
            return False
        answers: list[Answer] = []
        reports: list[SessionReport] = []
        for command in due.commands:
            refused, states = self._obey(command)
            answers.append(Answer(command.id, command.worker_id, "refused" if refused else "accepted", refused, ""))
            reports += [SessionReport(command.worker_id, SESSION, self._report(command, **s)) for s in states]
        await self._tell(answers, reports)
        return True

    async def fetched(self, instance: str) -> None:
        """The model of the instance has been fetched, and its process runs."""
        key = next(k for k in self.running if k[0] == instance)
        query = "select worker_id from processes where instance_id = $1 and epoch = $2 and rank = $3"
        (row,) = await rows(self.db, query, *key)
        self._seq += 1
        report = ProcessReport(instance=key[0], epoch=key[1], rank=key[2], seq=self._seq, state="running", ready=True)
        await self._tell([], [SessionReport(str(row["worker_id"]), SESSION, report)])

    async def end(self, instance: str, code: int) -> None:
        """The instance's process ends by itself."""
        key = next(k for k in self.running if k[0] == instance)
        del self.running[key]
        query = "select worker_id from processes where instance_id = $1 and epoch = $2 and rank = $3"
        (row,) = await rows(self.db, query, *key)
        await self._tell([], [SessionReport(str(row["worker_id"]), SESSION, self._exited(key, "exit", code))])

    def _obey(self, command: DueCommand) -> tuple[str, list[dict[str, Any]]]:
        """The agent's answer (the code of a refusal, or empty), and its reports."""
        key = (command.instance, command.epoch, command.rank)
        if command.verb == "stop":
            self.running.pop(key, None)
            return "", [{"state": "exited", "reason": "stopped", "exit_code": 0}]
        behaviour = self._behaviour(command.payload["deployment"])
        if behaviour == "refuse":
            return "conflict", []
        self._occupy(key, {c["device"]: c["exclusive"] for c in command.payload["claims"]})
        if behaviour == "exit":
            del self.running[key]
            return "", [{"state": "starting"}, {"state": "exited", "reason": "exit", "exit_code": 1}]
        if behaviour == "fetch":
            return "", [{"state": "starting", "message": "fetching hf:org/model: 1 GiB of 2 GiB"}]
        return "", [{"state": "starting"}, {"state": "running", "ready": True}]

    def _behaviour(self, deployment: str) -> str:
        left = self.behaviours.get(deployment)
        return left.pop(0) if left else "run"

    def _occupy(self, key: Key, devices: dict[str, bool]) -> None:
        """Checks that a real host would not have two processes on one device: a controller's worst mistake."""
        if any((k[0], k[2]) == (key[0], key[2]) for k in self.running):
            raise AssertionError(f"{key} is started twice: {self.running}")
        for other, held in self.running.items():
            for device in held.keys() & devices.keys():
                if held[device] or devices[device]:
                    raise AssertionError(f"{key} is started on {device}, which {other} uses")
        self.running[key] = devices

    def _report(self, command: DueCommand, **fields: Any) -> ProcessReport:
        self._seq += 1
        return ProcessReport(instance=command.instance, epoch=command.epoch, rank=command.rank, seq=self._seq, **fields)

    def _exited(self, key: Key, reason: str, code: int) -> ProcessReport:
        self._seq += 1
        fields: dict[str, Any] = {"state": "exited", "reason": reason, "exit_code": code}
        return ProcessReport(instance=key[0], epoch=key[1], rank=key[2], seq=self._seq, **fields)

    async def _tell(self, answers: Iterable[Answer], reports: Iterable[SessionReport]) -> None:
        reports = list(reports)
        async with self.db.transaction() as connection:
            held = await lock_sessions(connection, [(r.worker_id, r.session) for r in reports])
            concerned = await write_answers(connection, list(answers))
            for report in reports:  # one by one: each is a report, and the last one stays
                if (report.worker_id, report.session) in held:
                    concerned |= (await write_reports(connection, [report])).deployments
            await notify(connection, "process", concerned)


async def set_heartbeat(db: Database, worker_id: str, *, silent: bool = False) -> None:
    """Sets the worker's last heartbeat to now or to ten minutes ago, and notifies."""
    seen = timedelta(minutes=-10) if silent else timedelta()
    async with db.transaction() as connection:
        await connection.execute(
            """insert into worker_liveness (worker_id, session, connected, last_seen)
               values ($1, 1, not $2, clock_timestamp() + $3)
               on conflict (worker_id) do update set connected = excluded.connected, last_seen = excluded.last_seen""",
            worker_id,
            silent,
            seen,
        )
        await notify(connection, "worker", [worker_id])


def as_text(value: Any) -> str:
    """One line that is equal for equal values."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str).decode()
