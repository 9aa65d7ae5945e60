"""A deployment shows the engines that were chosen for its instances, whatever its spec leaves open."""

from controller.store.core.database import Database
from controller.store.views.deployments import deployment_by_name
from support.database.ledger import add_deployment, add_instance


async def engines(db: Database) -> list[str]:
    async with db.snapshot() as connection:
        return (await deployment_by_name(connection, "d")).status.engines


async def test_the_chosen_engines_are_shown_once_something_is_placed(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d", engine="auto", model="hf:org/model")
    for name, phase in (("d-1", "running"), ("d-2", "starting"), ("d-3", "pending")):
        await add_instance(migrated, uid, name, phase=phase, epoch=1)
    assert await engines(migrated) == []
    async with migrated.transaction() as connection:
        await connection.execute("update instances set engine = 'vllm'")
    assert await engines(migrated) == ["vllm"]
    async with migrated.transaction() as connection:
        await connection.execute("update instances set engine = 'sglang' where id <> 'd-1'")
    assert await engines(migrated) == ["sglang", "vllm"]
    async with migrated.transaction() as connection:
        await connection.execute("update instances set phase = 'pending'")
    assert await engines(migrated) == [], "what was chosen before is chosen again at the next placement"
