"""The message of a failed analysis; a model is read once for all its deployments."""

import asyncio
import shutil
from pathlib import Path

from controller.domain.restart_delays import RestartSettings
from controller.store.core.database import Database
from controller.store.views.deployments import deployment_by_name
from schemas.manifest.deployment import DeploymentSpec
from support.builders.apply import apply_spec
from support.builders.model_files import model_folder
from support.database.ledger import rows
from support.leading.leader_term import LeaderTerm

LIMIT_S = 30.0


async def test_an_unreadable_model_has_a_message_for_users(db: Database) -> None:
    leader_term = await LeaderTerm.begin(db, settings=RestartSettings())
    spec = DeploymentSpec.model_validate({"engine": "transformers", "model": "path:/no/such/folder"})
    uid = (await apply_spec(db, "d", spec)).view.uid
    async with asyncio.timeout(LIMIT_S):
        while True:
            await leader_term.instances.step([uid])
            async with db.snapshot() as connection:
                status = (await deployment_by_name(connection, "d")).status
            if status.reason == "metadata_unknown":
                break
            await asyncio.sleep(0.05)
    await leader_term.aclose()
    assert status.message.startswith("/no/such/folder: the controller reads no model there")


async def test_a_second_deployment_of_a_model_reads_nothing(db: Database, tmp_path: Path) -> None:
    leader_term = await LeaderTerm.begin(db, settings=RestartSettings())
    folder = model_folder(tmp_path / "m", {"a": ("F16", [2**20], 2**21)})
    for name in ("first", "second"):
        model = {"engine": "transformers", "model": f"path:{folder}", "args": {"seed": len(name)}}
        uid = (await apply_spec(db, name, DeploymentSpec.model_validate(model))).view.uid
        async with asyncio.timeout(LIMIT_S):
            while not await rows(db, "select 1 from revisions where deployment_uid = $1 and need is not null", uid):
                await leader_term.instances.step([uid])
                await asyncio.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)
    await leader_term.aclose()
