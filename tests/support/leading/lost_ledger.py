"""A ledger that lost commits, with a hub over it: what agents tell of processes that it does not know."""

from datetime import UTC, datetime
from typing import Any

from controller.domain.start_receipts import seal
from controller.reconcilers.adoption import EVERYTHING, AdoptionReconciler
from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello
from schemas.wire import ProcessReport
from support.database.ledger import add_deployment
from support.leading.served_hub import HubUnderTest

GPU = "GPU-1"
FOUND = "select array_agg(instance_id order by instance_id) from found_processes"
CLAIMS = "select array_agg(device || ' ' || instance_id || ' ' || epoch order by device) from claims"
PHASES = "select coalesce(jsonb_object_agg(id, phase), '{}') from instances"


class LostLedger:
    """A ledger that lost commits, and the step of its leader."""

    def __init__(self, hub: HubUnderTest) -> None:
        self.hub = hub
        self.told = True
        self.settled = 0

    async def begin(self, *, settled: bool = False) -> None:
        await self.hub.execute(
            "update lease set cut_at = clock_timestamp() - interval '1 s', renewed_at = clock_timestamp(), term = 3,"
            " settled_at = case when $1 then clock_timestamp() end",
            settled,
        )

    async def step(self, hint: str = "decided") -> Any:
        reconciler = AdoptionReconciler(
            self.hub.database, 3, reported=lambda: self.told, settled=lambda: setattr(self, "settled", self.settled + 1)
        )
        await self.hub.execute("update workers set phase = 'ready'")
        outcome = (await reconciler.step([EVERYTHING]))[EVERYTHING]
        self.hub.hub.wake(hint, None)
        return outcome

    async def receipt(self, worker: str, uid: str, instance: str, *, epoch: int = 1, gib: int = 40) -> str:
        claims = [
            {"device": GPU, "memory_mib": gib * 1024, "cpu_milli": 0, "exclusive": False, "position": 0},
            {"device": f"host-{worker}", "memory_mib": 0, "cpu_milli": 0, "exclusive": False, "position": 1},
        ]
        layout = {"gpus": 1, "workers": 1, "tp": 1, "pp": 1, "dp": 1}
        created = datetime(2026, 11, 24, tzinfo=UTC).isoformat()
        facts = {
            "worker_id": worker, "instance": instance, "epoch": epoch, "rank": 0, "deployment_uid": uid, "revision": 1,
            "created_at": created, "engine": "", "layout": layout, "claims": claims,
        }  # fmt: skip
        return seal(facts, await self.key())

    async def key(self) -> bytes:
        """Of receipts, while it is plain."""
        return bytes(await self.hub.value("select receipt_key from lease"))

    async def tells(self, processes: list[ProcessReport], receipts: list[str], *, sessions: int = 0) -> AgentDouble:
        first = hello(
            [gpu(GPU)], processes=processes, receipts=tuple(receipts), highest_term=3, highest_session=sessions
        )
        return await self.hub.connect(first=first)


async def lost_ledger(hub: HubUnderTest, *, settled: bool = False) -> tuple[LostLedger, str, str]:
    """It, a worker, and a deployment."""
    ledger = LostLedger(hub)
    await ledger.begin(settled=settled)
    return ledger, await hub.add_worker(), await add_deployment(hub.database, "d")
