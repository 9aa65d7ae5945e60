"""A cluster whose operator types verbs on the controller's host, such as `gpuward backup`."""

import asyncio
import signal

from support.processes.cluster import STOP_S, Cluster

VERB_S = 120


class OperatedCluster(Cluster):
    """A cluster with verbs that need the controller's data folder."""

    async def verb(self, *argv: str) -> tuple[int, str]:
        """Runs one to its end; returns its exit code and what it printed."""
        name = f"verb-{len(self.processes)}"
        self.start(name, *argv, "--data-dir", str(self.data_dir))
        code = await asyncio.to_thread(self.processes[name].wait, VERB_S)
        return code, self.log(name)

    async def done(self, *argv: str) -> str:
        """Runs a verb that must succeed; returns what it printed."""
        code, said = await self.verb(*argv)
        assert code == 0, said
        return said

    async def stop_controller(self) -> None:
        """Ends it as an operator does, which must go well."""
        self.signal("controller", signal.SIGTERM)
        assert await asyncio.to_thread(self.processes.pop("controller").wait, STOP_S) == 0
