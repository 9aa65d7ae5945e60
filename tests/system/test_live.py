"""The live socket of a real controller, with a real agent and its engine behind it."""

import asyncio
from typing import Any

import orjson

from support.processes.cluster import Cluster

LIMIT_S = 60.0


async def test_a_tab_sees_a_deployment_come_and_go(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1", gpus=2)
    told: list[dict[str, Any]] = []
    live = cluster.session.ws_connect("/api/v1/live", compress=15, max_msg_size=0)
    async with live as socket, asyncio.timeout(LIMIT_S):

        async def until(done: Any) -> dict[str, Any]:
            for message in told:
                if done(message):
                    return message
            while True:
                told.append(orjson.loads((await socket.receive()).data))
                if done(told[-1]):
                    return told[-1]

        async def ask(id_: int, topic: str, **params: Any) -> None:
            await socket.send_json({"op": "open", "id": id_, "topic": topic, "params": params})

        for id_, topic in enumerate(("objects", "gpus", "events"), 1):
            await ask(id_, topic)
        order = (await until(lambda m: m["type"] == "gpus" and m["uuid"]))["uuid"]
        await until(lambda m: m["type"] == "snapshot")
        await until(lambda m: m["type"] == "opened")
        resources = {"gpus": 1, "gpu_memory": "1GiB"}
        spec = {"kind": "Deployment", "name": "d", "engine": "simulated", "resources": resources}
        await cluster.call("PUT", "/deployments/d", spec)
        running = await until(
            lambda m: m["type"] == "changed" and m["object"]["kind"] == "Instance"
            and m["object"]["status"]["phase"] == "running"
        )  # fmt: skip
        claimed = await until(lambda m: m["type"] == "round" and any(m.get("claimed_mib", [])))
        index = range(len(order)) if claimed["index"] is None else claimed["index"]
        held = [order[at] for at, mib in zip(index, claimed["claimed_mib"], strict=True) if mib]
        assert held == running["object"]["status"]["gpus"]
        await until(lambda m: m["type"] == "event" and m["event"]["reason"] == "scheduled")
        await until(
            lambda m: m["type"] == "changed" and m["object"]["kind"] == "Worker"
            and m["object"]["status"]["claimed_mib"] == 1024
        )  # fmt: skip
        await ask(4, "logs", instance=running["object"]["name"])
        await until(lambda m: m["type"] == "log")
        told.clear()
        await cluster.call("DELETE", "/deployments/d")
        await until(lambda m: m["type"] == "gone" and m["object"]["kind"] == "Deployment")
        await until(lambda m: m["id"] == 4 and m["type"] == "end")
        await until(
            lambda m: m["type"] == "changed" and m["object"]["kind"] == "Worker"
            and m["object"]["status"]["claimed_mib"] == 0
        )  # fmt: skip
