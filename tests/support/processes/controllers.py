"""Several named controllers on one external database, and a record of the rows that each wrote."""

from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from support.processes.cluster import READY_S, Cluster, Json

_LIMIT_S = 30.0
# Written by a leader's reconcilers and by the API; only reconcilers insert commands.
LEADER = ("deployments", "revisions", "instances", "claims", "lease", "commands")
# Written by a hub about its connected agents.
HUB = ("worker_liveness", "processes", "workers")
_RECORD = """
create table test_writes (id bigint generated always as identity, who text, place text, what text, term bigint);
create function test_note() returns trigger language plpgsql as $$
begin
    insert into test_writes (who, place, what, term)
    select current_setting('gpuward.who', true), tg_table_name, tg_op, (select term from lease);
    return null;
end $$;
"""


class Controllers(Cluster):
    """A cluster whose controllers have names. API calls go to the one that `through` named last."""

    def __init__(self, folder: Path, dsn: str) -> None:
        super().__init__(folder)
        self._dsn = dsn
        self._ports: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def start_named(self, name: str, **env: str) -> None:
        """Starts a controller, on the port that it had before, and waits until it serves."""
        # By this setting the database knows the connection's owner; controllers do not read it.
        url = f"{self._dsn}{'&' if '?' in self._dsn else '?'}gpuward.who={name}"
        port = str(self._ports.get(name, 0))
        folder = self.folder / name
        process = f"controller-{name}"
        (folder / "client.env").unlink(missing_ok=True)
        self.start(process, "controller", "--data-dir", str(folder), "--port", port, GPUWARD_DATABASE_URL=url, **env)
        await self.until(lambda: self._serves(name, folder), f"{name} serves", READY_S)

    async def _serves(self, name: str, folder: Path) -> bool:
        if self.processes[f"controller-{name}"].poll() is not None:
            raise AssertionError(f"controller {name} ended: {self.log(f'controller-{name}')}")
        file = folder / "client.env"
        if not file.exists():
            return False
        values = dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
        self._ports[name] = int(values["GPUWARD_URL"].rsplit(":", 1)[1])
        if "GPUWARD_API_KEY" in values:  # the first one creates the key for all
            self._keys[""] = values["GPUWARD_API_KEY"]
        if name not in self._sessions:
            self._sessions[name] = aiohttp.ClientSession(
                base_url=values["GPUWARD_URL"],
                headers={"Authorization": f"Bearer {self._keys['']}"},
                timeout=aiohttp.ClientTimeout(total=10),
            )
        self.through(name)
        try:
            return bool(await self.get("/leader"))
        except (aiohttp.ClientError, AssertionError, TimeoutError):
            return False

    def through(self, name: str) -> None:
        """API calls go to this one from now on."""
        self._session = self._sessions[name]

    def headers(self) -> dict[str, str]:
        """With which a client of its own may call the API and models."""
        return {"Authorization": f"Bearer {self._keys['']}"}

    def port_of(self, name: str) -> int:
        """The port that it listens on."""
        return self._ports[name]

    def pid_of(self, name: str) -> int:
        """The pid of its process."""
        return self.processes[f"controller-{name}"].pid

    def kill_named(self, name: str) -> None:
        """SIGKILL."""
        self.kill(f"controller-{name}")

    async def leads(self, name: str) -> bool:
        """Whether this one reports that it leads."""
        return (await self.leader_at(name) or {}).get("leading") is True

    async def leader_at(self, name: str) -> Json | None:
        """What this one reports about itself and the leader; None without an answer."""
        try:
            async with self._sessions[name].get("/api/v1/leader") as response:
                return dict(await response.json()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    # The database

    async def execute(self, query: str, *args: Any) -> list[Any]:
        """Runs a query on a connection of the test's own."""
        connection = await asyncpg.connect(self._dsn, timeout=_LIMIT_S, command_timeout=_LIMIT_S)
        try:
            return list(await connection.fetch(query, *args))
        finally:
            await connection.close(timeout=_LIMIT_S)

    async def record_writes(self) -> None:
        """Records every row written into these tables from now on, with the writer."""
        connection = await asyncpg.connect(self._dsn, timeout=_LIMIT_S, command_timeout=_LIMIT_S)
        try:
            await connection.execute(_RECORD)
            for table in (*LEADER, *HUB):
                events = "insert" if table == "commands" else "insert or update or delete"
                await connection.execute(
                    f"create trigger test_note after {events} on {table} for each row execute function test_note()"
                )
        finally:
            await connection.close(timeout=_LIMIT_S)

    async def written_by(self, name: str, *, since_term: int, places: tuple[str, ...] = LEADER) -> list[str]:
        """The rows that this one wrote in that term or a later one."""
        query = """select term || ': ' || what || ' ' || place as noted from test_writes
                    where who = $1 and term >= $2 and place = any($3) order by id"""
        return [row["noted"] for row in await self.execute(query, name, since_term, places)]

    async def aclose(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._session = None
        await super().aclose()
