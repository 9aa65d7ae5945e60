"""Applies of whole files through the API, carried out to their rest, beside the plan that foretells them.

Each process starts, runs and stops as it is told. Timing is left out.
"""

from collections import Counter
from typing import Any

from controller.store.core.database import Database
from support.database.ledger import rows
from support.leading.leader_term import LeaderTerm
from support.leading.served_api import ServedApi
from support.standins.hosts_by_hand import Hosts

_ROUNDS = 60
_INSTANCES = """
    select d.name, i.id, i.phase, i.reason, i.pushed_out_for, i.replaces, i.revision = d.revision as newest
      from instances i join deployments d on d.uid = i.deployment_uid order by d.name, i.created_at, i.id"""
_VICTIMS = "select evidence -> 'leave' as victims from events where reason = 'preempting' and id > $1"
Document = dict[str, Any]


class Floor:
    """The API, the reconcilers and the hosts over one database."""

    def __init__(self, api: ServedApi, db: Database, term: LeaderTerm) -> None:
        self.api, self.db, self.term, self.hosts = api, db, term, Hosts(db)

    async def apply(self, document: Document) -> None:
        """As `gpuward apply` does; the deployment takes its step, and the placement pass comes later."""
        kind = {"Deployment": "deployments", "UtilizationPolicy": "policies"}[document["kind"]]
        status, answer = await self.api.call("PUT", f"/api/v1/{kind}/{document['name']}", json=document)
        assert status in (200, 201), answer
        if kind == "deployments":
            self.term.passes.mark_backlog()
            await self.term.instances.step([answer["uid"]])

    async def rest(self) -> None:
        """Steps and carries out commands until nothing changes."""
        before: Any = None
        for _ in range(_ROUNDS):
            await self.term.step()
            moved = await self.hosts.run_commands()
            after = await self.term.picture()
            if after == before and not moved:
                return
            before = after
        raise AssertionError(f"does not come to rest: {before}")

    async def instances(self) -> list[dict[str, Any]]:
        return await rows(self.db, _INSTANCES)


def told(body: dict[str, Any]) -> dict[str, Counter[str]]:
    """By deployment: how many instances are told to fit, and how many to be pending for each reason."""
    found: dict[str, Counter[str]] = {}
    for item in body["items"]:
        state = "fits" if item["fits"] else item["reason"]
        if state is not None:  # None: the rollout does not get there
            found.setdefault(item["deployment"], Counter())[state] += 1
    return found


async def check_foretold(
    floor: Floor, body: dict[str, Any], file: tuple[Document, ...], earlier: list[dict[str, Any]]
) -> None:
    """Applies the file and checks that the plan, `body`, has told what becomes of it.

    Args:
        floor: where.
        body: the plan of the file.
        file: documents.
        earlier: the instances at the time of the plan.
    """
    (mark,) = [row["last"] for row in await rows(floor.db, "select coalesce(max(id), 0) as last from events")]
    for one in file:
        await floor.apply(one)
    await floor.rest()
    later = await floor.instances()
    known = {one["id"] for one in earlier if one["phase"] == "running"}
    preempted = {one["instance"] for row in await rows(floor.db, _VICTIMS, mark) for one in row["victims"]}
    named = {name for item in body["items"] for name in item["preempts"]} & known
    assert named <= preempted, (body, later)
    present = {one["id"] for one in earlier}
    successors = {one["id"] for one in later if one["replaces"] in present} - present
    for name, changes in told(body).items():
        now = Counter(
            "fits" if one["phase"] == "running" else one["reason"]
            for one in later
            if one["name"] == name
            and one["newest"]
            and one["id"] not in known
            and (body["changes"][name] == "replace" or one["id"] not in successors)
        )
        assert changes == now, (name, body["changes"], [dict(i) for i in body["items"]], later)
