"""A backup is taken while all runs, and put back: the worker obeys again, and engines that the backup knows run on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.processes.cluster import Prepared
from support.processes.operated import OperatedCluster

HOST = "gpu-1"


class BackedUp(OperatedCluster):
    """Tells what is there before a backup and after it."""

    async def has_epoch(self, deployment: str, epoch: int) -> bool:
        (instance,) = await self.instances(deployment)
        return bool(instance["status"]["phase"] == "running" and instance["status"]["epoch"] == epoch)

    async def events(self) -> list[str]:
        return [event["reason"] for event in (await self.get("/events?limit=1000"))["items"]]


@pytest.fixture
async def cluster(data_dir: Path, prepared: Prepared) -> AsyncIterator[BackedUp]:
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
    key = (cluster.data_dir / "secrets.key").rename(cluster.folder / "kept.key")  # as on a new host: no backup holds it
    code, said = await cluster.verb("restore", str(file), "--replace", "--yes")
    assert "no key here opens these secrets, put it back or set them again: hf" in said
    assert (code, "restored: 1 deployments, 1 instances, 1 workers" in said) == (0, True), said

    key.rename(cluster.data_dir / "secrets.key")
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


@pytest.mark.cases
async def test_what_was_started_since_the_backup_runs_on_where_it_is_wanted(cluster: BackedUp, tmp_path: Path) -> None:
    file = tmp_path / "backup.zip"
    gpu = {"args": {"memory": "4GiB"}, "resources": {"gpus": 1}}
    await cluster.start_controller()
    await cluster.start_agent(HOST, gpus=5)
    for name in ("kept", "restarted", "begun-anew"):
        await cluster.apply(name, **gpu)
    for name in ("kept", "restarted", "begun-anew"):
        await cluster.running(name)
    await cluster.post(f"/workers/{HOST}/cordon")
    await cluster.apply("pending", **gpu)
    await cluster.until(lambda: cluster.phase_is("pending", "pending"), "it has no place")
    await cluster.done("backup", str(file))

    # Since then: one is placed, one is restarted under its name, one has a new name, and one is not wanted then.
    before = {name: (await cluster.instances(name))[0]["name"] for name in ("restarted", "begun-anew")}
    await cluster.post(f"/workers/{HOST}/uncordon")
    await cluster.running("pending")
    cluster.engines()[before["restarted"]].kill()
    await cluster.post("/deployments/begun-anew/stop")
    await cluster.until(lambda: cluster.phase_is("begun-anew", "stopped"), "it has stopped")
    await cluster.post("/deployments/begun-anew/start")
    await cluster.apply("unknown", **gpu)
    for name in ("begun-anew", "unknown", "restarted"):
        await cluster.running(name)
    await cluster.until(lambda: cluster.has_epoch("restarted", 2), "it has restarted", 40)
    ran = {name: (await cluster.instances(name))[0]["name"] for name in ("kept", "restarted", "begun-anew", "pending")}
    assert ran["begun-anew"] != before["begun-anew"]
    pids = {name: cluster.engines()[instance].pid for name, instance in ran.items()}
    await cluster.stop_controller()
    await cluster.done("restore", str(file), "--replace", "--yes")

    await cluster.start_controller()
    await cluster.until(
        lambda: set(cluster.engines()) == set(ran.values()), "what the backup does not want is gone", 60
    )
    for name in ran:
        await cluster.running(name)
    assert {name: cluster.engines()[instance].pid for name, instance in ran.items()} == pids
    assert {name: (await cluster.instances(name))[0]["name"] for name in ran} == ran
    assert (await cluster.instances("restarted"))[0]["status"]["epoch"] == 2
    events = (await cluster.get("/events?limit=1000"))["items"]
    assert sum(event["reason"] == "adopted" for event in events) == 3
    (refused,) = [event for event in events if event["reason"] == "not_adopted"]
    assert "its deployment does not exist" in refused["message"]
    await cluster.audit()
    for name in ran:  # requests reach them, and commands too
        question = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
        async with cluster.session.post("/v1/chat/completions", json=question) as answer:
            assert answer.status == 200, await answer.text()
        await cluster.delete(name)
        await cluster.gone(name)
    await cluster.audit()
