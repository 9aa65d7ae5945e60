"""Due webhook deliveries, and the result of each attempt. A message keeps its id over all attempts.

A secret may sign a policy's webhook if the deployments of the policy's reports may use it. An inline policy is checked
with its deployment. A policy object is checked when it is written, and when a deployment that names it is written.
Before a report is signed, it is checked again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from controller.domain.access.secret_scopes import ALL_DEPLOYMENTS, SecretScope
from controller.domain.events import NewEvent
from controller.store.access.secret_keys import NO_KEYS, SecretKeys, UnreadableSecretError
from controller.store.core.database import Reader
from controller.store.core.events import write_events
from controller.store.policies.checks import named_policy
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import PolicySpec, UtilizationPolicy, Webhook
from schemas.manifest.problems import FieldProblem, join_path

_DUE: Final = """
    select w.id::text as id, w.url, w.secret, w.payload, w.attempts, coalesce(a.deployment_uid::text, '')
               as deployment_uid, s.name is not null as known, s.value, s.sealed, s.key_id, s.deployments
      from webhook_deliveries w
      left join policy_actions a on a.id = w.action_id
      left join secrets s on s.name = w.secret
     where w.finished_at is null and w.not_before <= clock_timestamp() and w.id <> all ($1::uuid[])
     order by w.not_before limit $2"""
_FIELD: Final = "utilization_policy"
_SCOPES: Final = "select name, deployments, admins_only from secrets where name = any($1)"
_NAMED: Final = "select name, spec #>> '{webhook,secret}' as secret from policies where name = any($1)"
_USERS: Final = """
    select name, spec ->> 'utilization_policy' as policy from deployments
     where deleted_at is null and spec ->> 'utilization_policy' = any($1) and name <> all($2) order by name"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message."""

    id: str
    url: str
    secret: str
    payload: str
    attempts: int
    deployment_uid: str
    key: str | None  # None: its signing secret is not stored, or may not be used (`key_problem`)
    key_problem: str = ""


async def read_due(connection: Any, *, but: Collection[str], limit: int, keys: SecretKeys = NO_KEYS) -> list[Delivery]:
    """Messages whose next attempt is due, longest due first, without the ids in `but`."""
    rows = await connection.fetch(_DUE, list(but), limit)
    return [_delivery(dict(row), keys) for row in rows]


def _delivery(row: dict[str, Any], keys: SecretKeys) -> Delivery:
    known, value, sealed, key_id = (row.pop(name) for name in ("known", "value", "sealed", "key_id"))
    globs = row.pop("deployments")
    if not known:
        return Delivery(**row, key=None)
    # Its scope may have been changed since the policy was written.
    deployment = str(orjson.loads(row["payload"])["data"]["deployment"])
    if refusal := SecretScope(tuple(globs)).refusal(row["secret"], deployment, ""):
        return Delivery(**row, key=None, key_problem=refusal)
    try:
        return Delivery(**row, key=value if sealed is None else keys.open(row["secret"], key_id, sealed))
    except UnreadableSecretError as error:
        return Delivery(**row, key=None, key_problem=str(error))


async def record_delivered(connection: Any, delivery: Delivery) -> None:
    await connection.execute(
        """update webhook_deliveries
              set attempts = attempts + 1, delivered = true, finished_at = clock_timestamp(), error = ''
            where id = $1 and finished_at is null""",
        delivery.id,
    )
    await connection.execute("update secrets set used_at = clock_timestamp() where name = $1", delivery.secret)


async def record_failed(connection: Any, delivery: Delivery, error: str, retry_after_s: float | None) -> None:
    """Records a failed attempt. `retry_after_s` None: it was the last one, and an event is written."""
    status = await connection.execute(
        """update webhook_deliveries
              set attempts = attempts + 1, error = $2,
                  not_before = clock_timestamp() + make_interval(secs => coalesce($3::float8, 0)),
                  finished_at = case when $3::float8 is null then clock_timestamp() end
            where id = $1 and finished_at is null""",
        delivery.id,
        error,
        retry_after_s,
    )
    if retry_after_s is None and status != "UPDATE 0":
        attempts = delivery.attempts + 1
        message = f"the webhook {delivery.url} failed for good after {attempts} attempts: {error}"
        evidence = {"url": delivery.url, "attempts": attempts, "error": error, "id": delivery.id}
        event = NewEvent("webhook_failed", message, (f"deployment:{delivery.deployment_uid}",), evidence)
        await write_events(connection, [event])


@dataclass(frozen=True, slots=True)
class _Named:
    """A secret that signs reports, and the path in the manifest that names it."""

    path: str
    secret: str
    deployment: str | None  # the deployment of the reports; empty: none yet; None: any
    written: bool  # in this manifest, which the caller's role must allow; else in a stored policy


async def problems_of_webhook_secrets(
    connection: Reader,
    *,
    deployments: Mapping[str, tuple[str, DeploymentSpec]],
    policies: Mapping[str, tuple[str, PolicySpec]],
    role: str,
) -> list[FieldProblem]:
    """Problems of signing secrets that may not be used; that they exist is checked elsewhere.

    `deployments` and `policies` are given by their path in the manifest. `role`: the role of the key that writes
    them; empty: Gpuward itself.
    """
    named = [*_inline(deployments), *await _of_policies(connection, deployments, policies)]
    if not named:
        return []
    rows = await connection.fetch(_SCOPES, sorted({use.secret for use in named}))
    scopes = {row["name"]: SecretScope(tuple(row["deployments"]), row["admins_only"]) for row in rows}
    problems: dict[str, FieldProblem] = {}
    for use in named:
        if problem := _problem(use, scopes.get(use.secret, ALL_DEPLOYMENTS), role):
            problems.setdefault(use.path, FieldProblem(use.path, problem))
    return list(problems.values())


def _problem(use: _Named, scope: SecretScope, role: str) -> str:
    judged_role = role if use.written else ""
    if use.deployment is None:
        return scope.refusal_for_all(use.secret, judged_role)
    if not use.deployment:
        return scope.refusal_of_role(use.secret, judged_role)
    return scope.refusal(use.secret, use.deployment, judged_role)


def _inline(deployments: Mapping[str, tuple[str, DeploymentSpec]]) -> list[_Named]:
    return [
        _Named(_path(join_path(path, _FIELD)), policy.webhook.secret, name, written=True)
        for path, (name, spec) in deployments.items()
        if isinstance(policy := spec.utilization_policy, UtilizationPolicy) and policy.webhook is not None
    ]


async def _of_policies(
    connection: Reader,
    deployments: Mapping[str, tuple[str, DeploymentSpec]],
    policies: Mapping[str, tuple[str, PolicySpec]],
) -> list[_Named]:
    """Secrets of written policy objects with their deployments, and of stored ones that written deployments name."""
    webhooks = {name: (path, spec.webhook) for path, (name, spec) in policies.items() if spec.webhook is not None}
    named = [
        _Named(_path(path), spec.webhook.secret, None, written=True)
        for path, (_, spec) in policies.items()
        if spec.webhook is not None and spec.default
    ]
    users = await _users(connection, webhooks, [name for name, _ in deployments.values()])
    for policy, (path, webhook) in webhooks.items():
        named += [_Named(_path(path), webhook.secret, user, written=True) for user in users[policy] or ("",)]
    return [*named, *await _referred(connection, deployments, policies, webhooks)]


async def _users(
    connection: Reader, webhooks: Mapping[str, tuple[str, Webhook]], written: Collection[str]
) -> dict[str, list[str]]:
    """The deployments that name these policies, by policy, without those in `written`."""
    users: dict[str, list[str]] = {name: [] for name in webhooks}
    if webhooks:
        for row in await connection.fetch(_USERS, sorted(webhooks), list(written)):
            users[row["policy"]].append(row["name"])
    return users


async def _referred(
    connection: Reader,
    deployments: Mapping[str, tuple[str, DeploymentSpec]],
    policies: Mapping[str, tuple[str, PolicySpec]],
    webhooks: Mapping[str, tuple[str, Webhook]],
) -> list[_Named]:
    """Secrets of policy objects that written deployments name."""
    referred = {
        path: (name, policy) for path, (name, spec) in deployments.items() if (policy := named_policy(spec)) is not None
    }
    secrets = {policy: webhook.secret for policy, (_, webhook) in webhooks.items()}
    stored = {policy for _, policy in referred.values()} - {name for name, _ in policies.values()}
    if stored:
        secrets |= {row["name"]: row["secret"] for row in await connection.fetch(_NAMED, sorted(stored))}
    return [
        _Named(join_path(path, _FIELD), secret, name, written=False)
        for path, (name, policy) in referred.items()
        if (secret := secrets.get(policy))
    ]


def _path(path: str) -> str:
    return join_path(join_path(path, "webhook"), "secret")
