"""A backup is taken while all runs, and put back: the worker obeys again, and engines that the backup knows run on."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.processes.cluster import STOP_S, Cluster

HOST = "gpu-1"


class BackedUp(Cluster):
    """Runs verbs on the controller's host."""

    async def verb(self, *argv: str) -> tuple[int, str]:
        """Runs one to its end; returns its exit code and what it printed."""
        name = f"verb-{len(self.processes)}"
        self.start(name, *argv, "--data-dir", str(self.data_dir))
        code = await asyncio.to_thread(self.processes[name].wait, 60)
        return code, self.log(name)

    async def stop_controller(self) -> None:
        self.signal("controller", signal.SIGTERM)
        assert await asyncio.to_thread(self.processes.pop("controller").wait, STOP_S) == 0

    async def events(self) -> list[str]:
        return [event["reason"] for event in (await self.get("/events?limit=1000"))["items"]]


@pytest.fixture
async def cluster(data_dir: Path, prepared: Path) -> AsyncIterator[BackedUp]:
    made = BackedUp(data_dir, prepared)
    yield made
    await made.aclose()


@pytest.mark.cases
async def test_a_backup_comes_back_over_running_engines(cluster: BackedUp, tmp_path: Path) -> None:
    file, other = tmp_path / "backup.zip", tmp_path / "other.zip"
    other.write_text("not a backup")
    await cluster.start_controller()
    await cluster.start_agent(HOST, gpus=2)
    await cluster.apply("chat", args={"memory": "4GiB"}, resources={"gpus": 1})
    await cluster.running("chat")
    (chat,) = await cluster.instances("chat")
    assert (await cluster.call("PUT", "/secrets/hf", {"value": "sealed-value"}))[0] == 204
    pid = cluster.engines()[chat["name"]].pid

    code, said = await cluster.verb("backup", str(file))
    assert (code, "written to" in said) == (0, True), said
    code, said = await cluster.verb("backup", str(file))
    assert (code, "add --overwrite" in said) == (1, True), said
    code, said = await cluster.verb("restore", str(file), "--replace", "--yes")
    assert (code, "stop all controllers" in said) == (1, True), said

    # What the backup does not know: a deployment, and a later term that the agent has seen.
    await cluster.stop_controller()
    await cluster.start_controller()
    await cluster.until(lambda: cluster.worker_is(HOST, "ready"), "the worker is ready")
    await cluster.apply("later", args={"memory": "4GiB"}, resources={"gpus": 1})
    await cluster.running("later")
    assert len(cluster.engines()) == 2
    await cluster.stop_controller()

    for wrong, why in ((other, "not a backup"), (tmp_path / "none.zip", "does not exist")):
        code, said = await cluster.verb("restore", str(wrong), "--replace", "--yes")
        assert (code, why in said, "Traceback" in said) == (1, True, False), said
    code, said = await cluster.verb("restore", str(file))
    assert (code, "add --replace" in said) == (1, True), said
    (cluster.data_dir / "secrets.key").unlink()  # as on a new host: no backup holds it
    code, said = await cluster.verb("restore", str(file), "--replace", "--yes")
    assert "no key here opens these secrets, put it back or set them anew: hf" in said
    assert (code, "restored: 1 deployments, 1 instances, 1 workers" in said) == (0, True), said

    await cluster.start_controller()
    await cluster.until(lambda: cluster.worker_is(HOST, "ready"), "the worker is ready")
    await cluster.running("chat")
    await cluster.until(lambda: set(cluster.engines()) == {chat["name"]}, "only the engine of the backup runs")
    assert cluster.engines()[chat["name"]].pid == pid
    assert await cluster.phase_of("later") == "gone"
    assert {"restored", "history_lost"} <= set(await cluster.events())
    # The worker takes commands of the new term.
    await cluster.apply("after", args={"memory": "4GiB"}, resources={"gpus": 1})
    await cluster.running("after")
    assert cluster.engines()[chat["name"]].pid == pid
    await cluster.audit()
