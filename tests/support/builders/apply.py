"""Applies a spec below the API."""

from typing import Any

from controller.engines.registry import engine_for
from controller.scheduling.estimate import input_hash
from controller.store.core.database import Database
from controller.store.deployments.apply import Applied, apply
from schemas.manifest.deployment import DeploymentSpec


async def apply_spec(db: Database, name: str, spec: DeploymentSpec, **options: Any) -> Applied:
    return await apply(db, name, spec, input_hash=input_hash(spec, engine_for(spec)), **options)
