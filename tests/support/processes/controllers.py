"""Several controllers on one external database, each named, and a record of which of them wrote what."""

from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from support.processes.cluster import READY_S, Cluster, Json

_LIMIT_S = 30.0
# What only a leader's reconcilers write, and the API; commands are inserted by the former alone.
REIGN = ("deployments", "revisions", "instances", "claims", "lease", "commands")
# What a hub writes of agents that are connected to it.
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
    """A cluster whose controllers have names. What is asked goes to the one named last by `through`."""

    def __init__(self, folder: Path, dsn: str) -> None:
        super().__init__(folder)
        self._dsn = dsn
        self._ports: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def start_named(self, name: str, **env: str) -> None:
        """Starts a controller, on the same port as before, and waits until it serves."""
        # The database tells by this setting whose connection it is; controllers know nothing of it.
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
        if "GPUWARD_API_KEY" in values:  # the first one makes the key for all
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
        """From now on this one is asked."""
        self._session = self._sessions[name]

    def port_of(self, name: str) -> int:
        """Where it listens."""
        return self._ports[name]

    def pid_of(self, name: str) -> int:
        """Its process."""
        return self.processes[f"controller-{name}"].pid

    def kill_named(self, name: str) -> None:
        """SIGKILL."""
        self.kill(f"controller-{name}")

    async def leads(self, name: str) -> bool:
        """Whether this one says that it leads."""
        return (await self.leader_at(name) or {}).get("leading") is True

    async def leader_at(self, name: str) -> Json | None:
        """What this one says of itself and the leader; None where it says nothing."""
        try:
            async with self._sessions[name].get("/api/v1/leader") as response:
                return dict(await response.json()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    # The database

    async def execute(self, query: str, *args: Any) -> list[Any]:
        """Asks the database as a stranger."""
        connection = await asyncpg.connect(self._dsn, timeout=_LIMIT_S, command_timeout=_LIMIT_S)
        try:
            return list(await connection.fetch(query, *args))
        finally:
            await connection.close(timeout=_LIMIT_S)

    async def record_writes(self) -> None:
        """From now on every row that anybody writes into these tables is noted, with the writer."""
        connection = await asyncpg.connect(self._dsn, timeout=_LIMIT_S, command_timeout=_LIMIT_S)
        try:
            await connection.execute(_RECORD)
            for table in (*REIGN, *HUB):
                events = "insert" if table == "commands" else "insert or update or delete"
                await connection.execute(
                    f"create trigger test_note after {events} on {table} for each row execute function test_note()"
                )
        finally:
            await connection.close(timeout=_LIMIT_S)

    async def written_by(self, name: str, *, since_term: int, places: tuple[str, ...] = REIGN) -> list[str]:
        """What this one wrote there in that term or a later one."""
        query = """select term || ': ' || what || ' ' || place as noted from test_writes
                    where who = $1 and term >= $2 and place = any($3) order by id"""
        return [row["noted"] for row in await self.execute(query, name, since_term, places)]

    async def aclose(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._session = None
        await super().aclose()
