"""Containers between controller and agent: runtimes that agents report, images that orders name, and old agents."""

from typing import Any

from msgspec.structs import replace

from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello, inventory, process
from schemas.wire import Command, InventoryChanged, ReportedRuntime
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, eventually, start_payload

DIGEST = f"sha256:{'a' * 64}"
DOCKER = ReportedRuntime(name="docker", usable=True, gpus=True, version="29.1")
AWAY = ReportedRuntime(name="docker", usable=False, reason="Docker does not answer")
ORDER = {"image": "own/one:1", "pull": "missing"}
CONDITION = "select conditions -> 0 ->> 'message' from workers"


async def set_up(hub: HubUnderTest, *runtimes: ReportedRuntime) -> tuple[str, AgentDouble]:
    worker = await hub.add_worker()
    agent = await hub.connect(first=hello(shape=inventory([gpu("GPU-a")], runtimes=runtimes)))
    fields: dict[str, Any] = {"engine": "custom", "command": ["x"], "runtime": "docker", "image": "own/one:1"}
    uid = await add_deployment(hub.database, "d", **fields)
    for instance in ("i", "j"):
        await add_instance(hub.database, uid, instance, phase="starting", epoch=1)
        await claim(hub.database, "GPU-a", instance, 1024)
    return worker, agent


async def ordered(hub: HubUnderTest, agent: AgentDouble, worker: str, instance: str, **beside: Any) -> str:
    await hub.order(worker, instance, payload=start_payload(container=ORDER, **beside))
    command = await agent.command()
    assert command.start is not None
    assert command.start.container is not None
    return command.start.container.image


async def test_runtimes_are_kept_and_their_trouble_is_a_condition(hub: HubUnderTest) -> None:
    _, agent = await set_up(hub, AWAY)
    assert await hub.value(CONDITION) == "Docker does not answer"
    no_gpus = replace(DOCKER, gpus=False, reason="no NVIDIA container toolkit")
    await agent.send(InventoryChanged(inventory=inventory([gpu("GPU-a")], runtimes=(no_gpus,))))
    await eventually(lambda: hub.value(f"select ({CONDITION}) = 'no NVIDIA container toolkit'"), "the new reason")
    await agent.send(InventoryChanged(inventory=inventory([gpu("GPU-a")], runtimes=(DOCKER,))))
    await eventually(lambda: hub.value("select conditions = '[]' from workers"), "no condition")
    assert await hub.value("select runtimes -> 0 ->> 'version' from workers") == "29.1"


async def test_an_agent_that_knows_no_containers_never_gets_one(hub: HubUnderTest) -> None:
    """It would ignore the unknown field, and start the command as a process of its host."""
    worker, agent = await set_up(hub)
    assert await hub.value("select runtimes = '[]' and conditions = '[]' from workers")
    refused = await hub.order(worker, "i", payload=start_payload(container=ORDER))
    await eventually(lambda: hub.value("select state = 'refused' from commands where id = $1", refused), "refused")
    assert "reports no Docker engine" in await hub.value("select message from commands where id = $1", refused)
    await hub.order(worker, "j")
    command = await agent.command()
    assert isinstance(command, Command)
    assert command.instance == "j", "the first message is of the process"


async def test_an_agent_whose_docker_is_away_says_so_itself(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, AWAY)
    assert await ordered(hub, agent, worker, "i") == "own/one:1"


async def test_settings_change_default_images_alone(hub: HubUnderTest) -> None:
    hub.images["vllm"] = "registry.example/vllm:2"
    worker, agent = await set_up(hub, DOCKER)
    assert await ordered(hub, agent, worker, "i", default_image="vllm") == "registry.example/vllm:2"
    assert await ordered(hub, agent, worker, "j") == "own/one:1"


async def test_later_replicas_run_the_digest_of_the_first(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, DOCKER)
    assert await ordered(hub, agent, worker, "i") == "own/one:1"
    await agent.send(process("i", "running", seq=1, ready=True, image_digest=DIGEST, image_repository="own/one"))
    await agent.ack(1)
    assert await ordered(hub, agent, worker, "j") == f"own/one@{DIGEST}"


async def test_an_image_that_is_never_pulled_keeps_its_name(hub: HubUnderTest) -> None:
    """An image of the host's own may have a digest that no other host can get."""
    worker, agent = await set_up(hub, DOCKER)
    await agent.send(process("i", "running", seq=1, ready=True, image_digest=DIGEST, image_repository="own/one"))
    await agent.ack(1)
    local = {**ORDER, "pull": "never"}
    await hub.order(worker, "j", payload=start_payload(container=local))
    command = await agent.command()
    assert command.start is not None
    assert command.start.container is not None
    assert command.start.container.image == "own/one:1"


async def test_a_digest_is_not_asked_of_another_repository(hub: HubUnderTest) -> None:
    hub.images["vllm"] = "old.example/vllm:2"
    worker, agent = await set_up(hub, DOCKER)
    await ordered(hub, agent, worker, "i", default_image="vllm")
    await agent.send(
        process("i", "running", seq=1, ready=True, image_digest=DIGEST, image_repository="old.example/vllm")
    )
    await agent.ack(1)
    hub.images["vllm"] = "new.example/vllm:2"
    assert await ordered(hub, agent, worker, "j", default_image="vllm") == "new.example/vllm:2"


async def test_a_digest_of_an_earlier_version_is_used_where_the_spec_names_the_image(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, DOCKER)
    await agent.send(process("i", "running", seq=1, ready=True, image_digest=DIGEST))
    await agent.ack(1)
    assert await ordered(hub, agent, worker, "i") == f"own/one@{DIGEST}"
    assert await ordered(hub, agent, worker, "j", default_image="vllm") == "own/one:1"
