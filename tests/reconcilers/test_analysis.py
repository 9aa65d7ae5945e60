"""What an analysis that went wrong tells the user, and that a model that was read is not read again."""

import asyncio
import shutil
from pathlib import Path

from controller.decide.backoff import RestartSettings
from controller.store.core.database import Database
from controller.store.deployments import writes as deployments
from controller.store.views.deployments import deployment_by_name
from schemas.manifest import DeploymentSpec
from support.leader_term import Reign
from support.ledger import rows
from support.model_files import model_folder

LIMIT_S = 30.0


async def test_a_model_that_cannot_be_read_is_told_in_words_for_users(db: Database) -> None:
    leader_term = await Reign.begin(db, settings=RestartSettings())
    spec = DeploymentSpec.model_validate({"engine": "transformers", "model": "path:/no/such/folder"})
    uid = (await deployments.apply(db, "d", spec)).view.uid
    async with asyncio.timeout(LIMIT_S):
        while True:
            await leader_term.instances.step([uid])
            async with db.snapshot() as connection:
                status = (await deployment_by_name(connection, "d")).status
            if status.reason == "metadata_unknown":
                break
            await asyncio.sleep(0.05)
    await leader_term.aclose()
    assert status.message.startswith("/no/such/folder is not a folder that the controller can read")


async def test_a_second_deployment_of_a_model_needs_no_second_reading(db: Database, tmp_path: Path) -> None:
    leader_term = await Reign.begin(db, settings=RestartSettings())
    folder = model_folder(tmp_path / "m", {"a": ("F16", [2**20], 2**21)})
    for name in ("first", "second"):
        model = {"engine": "transformers", "model": f"path:{folder}", "args": {"seed": len(name)}}
        uid = (await deployments.apply(db, name, DeploymentSpec.model_validate(model))).view.uid
        async with asyncio.timeout(LIMIT_S):
            while not await rows(db, "select 1 from revisions where deployment_uid = $1 and need is not null", uid):
                await leader_term.instances.step([uid])
                await asyncio.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)
    await leader_term.aclose()
