"""Many running models at once, written by hand."""

from controller.store.core.database import Database
from support.database.ledger import add_host


async def add_models(db: Database, first: int, end: int, *, replicas: int = 1) -> None:
    """Running models `m<first>` to `m<end - 1>`, no two of which have the same spec."""
    host = await add_host(db, f"w{first}", gpus=1)
    async with db.transaction() as c:
        await c.execute("update workers set proxy_address = '127.0.0.1:1'")
        for query in (
            """insert into deployments (uid, name, generation, revision, spec)
               select gen_random_uuid(), 'm' || n, 1, 1, jsonb_build_object(
                      'engine', 'vllm', 'model', 'hf:org/m' || n, 'replicas', 1,
                      'serving', jsonb_build_object('aliases', jsonb_build_array('a' || n)))
                 from generate_series($1::int, $2 - 1) n""",
            """insert into revisions (deployment_uid, generation, spec, input_hash)
               select d.uid, 1, d.spec, '' from deployments d
                 join generate_series($1::int, $2 - 1) n on d.name = 'm' || n""",
        ):
            await c.execute(query, first, end)
        await c.execute(
            """insert into instances (id, deployment_uid, revision, phase, epoch)
               select d.name || '-' || k, d.uid, 1, 'running', 1 from deployments d
                 join generate_series($1::int, $2 - 1) n on d.name = 'm' || n, generate_series(1, $3) k""",
            first, end, replicas,
        )  # fmt: skip
        await c.execute(
            """insert into processes (instance_id, epoch, rank, worker_id, state, seq, session)
               select i.id, 1, 0, $1, 'running', 1, 1 from instances i
                where not exists (select 1 from processes p where p.instance_id = i.id)""",
            host.id,
        )
