"""An operator's end of a GPU's cordon reaches the agent: at once where it is connected, else with its welcome."""

from msgspec.structs import replace

from controller.store.workers.devices import set_gpu_cordon
from rig.agent_messages import gpu, hello, inventory
from schemas.wire import ReportedGpu, Welcome
from support.leading.served_hub import HubUnderTest

CONDEMNED = {"health": "unhealthy", "health_reason": "xid_48: a double-bit ECC error (Xid 48)"}


def condemned(uuid: str) -> ReportedGpu:
    return replace(gpu(uuid), **CONDEMNED)


async def test_a_connected_agent_is_told_at_once_and_each_later_one_again(hub: HubUnderTest) -> None:
    worker = await hub.add_worker()
    shape = inventory([condemned("GPU-a")])
    connection = await hub.connect(first=hello(shape=shape))
    assert connection.welcome is not None
    assert connection.welcome.dismissed == {}
    await set_gpu_cordon(hub.database, "GPU-a", "uncordon")
    hub.hub.wake("worker", worker)
    told = await connection.next()
    assert isinstance(told, Welcome)
    assert told == replace(connection.welcome, dismissed={"GPU-a": 1})
    hub.hub.wake("worker", worker)
    hub.hub.wake("*", None)
    again = await hub.connect(first=hello(shape=shape))
    assert again.welcome is not None
    assert again.welcome.dismissed == {"GPU-a": 1}
    assert not isinstance(await connection.end(), Welcome)
