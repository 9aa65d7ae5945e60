"""The secret that signs a webhook is for the deployments that its policy reports on, as one in an environment is."""

from typing import Any

import pytest

from controller.store.access.secrets import put_secret, scope_secret
from controller.store.core.database import Database
from controller.store.core.events import acting
from controller.store.deployments.apply import apply
from controller.store.policies.apply import apply_policy
from schemas.manifest.parse import parse_policy_spec, parse_spec
from schemas.manifest.problems import ManifestError

WATCHED: dict[str, Any] = {
    "min_gpu_utilization": 5, "time_window": "5m", "webhook": {"url": "https://hooks.example/x", "secret": "hook"},
}  # fmt: skip


@pytest.fixture
async def db(migrated: Database) -> Database:
    """With a secret for team a."""
    await put_secret(migrated, "hook", "a secret that signs", deployments=["team-a-*"])
    return migrated


async def deploy(db: Database, name: str, policy: object) -> None:
    spec = parse_spec({"engine": "simulated", "utilization_policy": policy}, name=name)
    await apply(db, name, spec, input_hash="")


async def policy(db: Database, **fields: Any) -> None:
    await apply_policy(db, "p", parse_policy_spec({**WATCHED, **fields}, name="p"))


async def test_an_inline_policy_is_judged_as_its_deployment(db: Database) -> None:
    await deploy(db, "team-a-chat", WATCHED)
    with pytest.raises(ManifestError) as refused:
        await deploy(db, "chat", WATCHED)
    (problem,) = refused.value.problems
    assert problem.path == "utilization_policy.webhook.secret"
    assert "secret 'hook' is for deployments named team-a-*" in problem.message


async def test_a_policy_object_is_judged_by_what_names_it(db: Database) -> None:
    await policy(db)  # nothing names it yet
    await deploy(db, "team-a-chat", "p")
    with pytest.raises(ManifestError) as refused:
        await deploy(db, "chat", "p")
    (problem,) = refused.value.problems
    assert problem.path == "utilization_policy"
    await policy(db, webhook=None)
    await deploy(db, "chat", "p")
    with pytest.raises(ManifestError, match="is for deployments named") as refused:
        await policy(db)
    assert [one.path for one in refused.value.problems] == ["webhook.secret"]


async def test_the_default_policy_needs_a_secret_for_all(db: Database) -> None:
    with pytest.raises(ManifestError, match=r"may be about any.*--for all"):
        await policy(db, default=True)
    await scope_secret(db, "hook", deployments=[], admins_only=None)
    await policy(db, default=True)


async def test_only_administrators_write_a_secret_that_is_for_them(db: Database) -> None:
    await scope_secret(db, "hook", deployments=[], admins_only=True)
    with acting("key:op", role="operator"):
        for applying in (policy(db), policy(db, default=True), deploy(db, "chat", WATCHED)):
            with pytest.raises(ManifestError, match="is for administrators"):
                await applying
    with acting("key:root", role="admin"):
        await policy(db)
    with acting("key:op", role="operator"):
        await deploy(db, "chat", "p")  # what an administrator has written may be named
