"""Secrets: written by users, opened when a command is dispatched, never returned by the API."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.access.secret_scopes import ALL_DEPLOYMENTS, SECRET_REFUSALS, SecretScope, missing_secret
from controller.domain.events import NewEvent
from controller.store.access.secret_keys import NO_KEYS, SecretKeys, UnreadableSecretError, without_key
from controller.store.core.database import Connection, Database, Reader
from controller.store.core.events import notify, notify_all, write_events
from controller.store.core.refusals import NoSecretsKeyError, NotFoundError
from schemas.api.access import SecretView
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import FieldProblem, join_path

_USE_NOTED_EVERY: Final = "1 minute"
_BATCH: Final = 200
MOST_KNOWN: Final = 10_000  # secrets whose values are held in memory
MAKE_KEY: Final = (
    "make one on the controller's host (head -c 32 /dev/urandom | base64 > FILE, mode 0600), set "
    "GPUWARD_SECRETS_KEY_FILE to it on every controller and restart them; --plain (in the API: plain: true) stores it "
    "unencrypted"
)
# A scope of null stays as it is.
_PUT: Final = """
    insert into secrets (name, value, sealed, key_id, deployments, admins_only, changed_at)
    values ($1, $2, $3, $4, coalesce($5::text[], '{}'), coalesce($6::boolean, false), clock_timestamp())
    on conflict (name) do update
       set value = excluded.value, sealed = excluded.sealed, key_id = excluded.key_id, updated_at = clock_timestamp(),
           changed_at = clock_timestamp(),
           deployments = coalesce($5, secrets.deployments), admins_only = coalesce($6, secrets.admins_only)"""
_LACKING: Final = """
    select distinct deployment_uid from instances where phase in ('pending', 'backoff') and reason = any($1)"""
_ANY_SEALED: Final = "select exists (select from secrets where sealed is not null)"
_ALL: Final = "select name, value, sealed, key_id, deployments, admins_only from secrets order by name limit $1"
_VALUES: Final = "select name, value, sealed, key_id, deployments, admins_only from secrets where name = any($1)"


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret for a dispatch."""

    value: str
    scope: SecretScope = ALL_DEPLOYMENTS
    problem: str = ""  # why it has no value


async def put_secret(
    database: Database,
    name: str,
    value: str,
    keys: SecretKeys = NO_KEYS,
    *,
    deployments: Sequence[str] | None = None,
    admins_only: bool | None = None,
    plain: bool = True,
) -> None:
    """Stores a secret, or replaces its value. A scope of None stays as it is; a new secret is for all deployments.

    `plain`: without a key it is stored unencrypted instead of refused.

    Raises:
        NoSecretsKeyError: there is no key, and `plain` is not set, or the other secrets are encrypted.
    """
    stored, sealed = (None, keys.seal(name, value)) if keys.current else (value, None)
    globs = None if deployments is None else list(deployments)
    async with database.transaction() as connection:
        if not keys.current and await connection.fetchval(_ANY_SEALED):
            raise NoSecretsKeyError(
                "this controller has no key, and the other secrets are encrypted; "
                "set GPUWARD_SECRETS_KEY_FILE on it, as on the other controllers"
            )
        if not (keys.current or plain):
            raise NoSecretsKeyError(f"this controller has no key to encrypt secret {name!r} with; {MAKE_KEY}")
        await connection.execute(_PUT, name, stored, sealed, keys.current, globs, admins_only)
        await write_events(connection, [NewEvent("secret_set", f"secret {name} was set", (f"secret:{name}",))])
        await notify_all(connection, {"secret": [name], "deployment": await _lacking(connection)})


async def scope_secret(
    database: Database, name: str, *, deployments: Sequence[str] | None, admins_only: bool | None
) -> None:
    """Changes the scope of a secret; None keeps it. Running processes keep the secret.

    Raises:
        NotFoundError: no secret has this name.
    """
    async with database.transaction() as connection:
        changed = await connection.fetchval(
            """update secrets
                  set deployments = coalesce($2, deployments), admins_only = coalesce($3, admins_only),
                      changed_at = clock_timestamp()
                where name = $1 returning name""",
            name,
            None if deployments is None else list(deployments),
            admins_only,
        )
        if changed is None:
            raise NotFoundError(f"no secret is named {name!r}")
        text = f"the scope of secret {name} was changed"
        await write_events(connection, [NewEvent("secret_set", text, (f"secret:{name}",))])
        await notify_all(connection, {"secret": [name], "deployment": await _lacking(connection)})


async def _lacking(connection: Connection) -> list[str]:
    """Deployments with an instance whose start was refused for a secret, which a changed secret may allow."""
    rows = await connection.fetch(_LACKING, list(SECRET_REFUSALS))
    return [str(row["deployment_uid"]) for row in rows]


async def delete_secret(database: Database, name: str) -> None:
    """Removes a secret; running processes keep the value that they were started with.

    Raises:
        NotFoundError: no secret has this name.
    """
    async with database.transaction() as connection:
        if await connection.fetchval("delete from secrets where name = $1 returning name", name) is None:
            raise NotFoundError(f"no secret is named {name!r}")
        event = NewEvent("secret_deleted", f"secret {name} was deleted", (f"secret:{name}",))
        await write_events(connection, [event])
        await notify(connection, "secret", [name])


async def list_secrets(database: Database, keys: SecretKeys = NO_KEYS) -> list[SecretView]:
    """All secrets by name, without their values."""
    async with database.connection() as connection:
        rows = await connection.fetch(
            """select name, sealed is not null as encrypted, key_id, deployments, admins_only, created_at, updated_at,
                      used_at
                 from secrets order by name"""
        )
    await keys.learn(row["key_id"] for row in rows)
    readable = {"", *keys.ids}
    return [SecretView(**row, readable=row["key_id"] in readable) for row in map(dict, rows)]


async def resolve_secrets(
    database: Database, names: Iterable[str], keys: SecretKeys = NO_KEYS
) -> dict[str, StoredSecret]:
    """The values of these secrets, recorded as used. Unknown names are missing."""
    wanted = sorted(set(names))
    async with database.connection() as connection:
        rows = await connection.fetch(_VALUES, wanted)
        await connection.execute(
            f"""update secrets set used_at = clock_timestamp()
                 where name = any($1)
                   and (used_at is null or used_at < clock_timestamp() - interval '{_USE_NOTED_EVERY}')""",  # noqa: S608
            wanted,
        )
    await keys.learn(row["key_id"] for row in rows)
    return {row["name"]: _stored(row, keys) for row in rows}


async def read_states(connection: Reader, names: Iterable[str], keys: SecretKeys = NO_KEYS) -> dict[str, StoredSecret]:
    """As `resolve_secrets`, within a transaction and without recording a use."""
    rows = await connection.fetch(_VALUES, sorted(set(names)))
    await keys.learn(row["key_id"] for row in rows)
    return {row["name"]: _stored(row, keys) for row in rows}


async def read_values(connection: Reader, keys: SecretKeys = NO_KEYS) -> dict[str, str]:
    """The values by name of those secrets that a key opens, at most `MOST_KNOWN`, without recording a use."""
    rows = await connection.fetch(_ALL, MOST_KNOWN)
    await keys.learn(row["key_id"] for row in rows)
    secrets = {row["name"]: _stored(row, keys) for row in rows}
    return {name: stored.value for name, stored in secrets.items() if not stored.problem}


async def unreadable_secrets(connection: Reader, keys: SecretKeys = NO_KEYS) -> list[str]:
    """The names of secrets whose key is not among these, such as after a restore without the key."""
    rows = await connection.fetch("select name, key_id from secrets where sealed is not null order by 1")
    await keys.learn(row["key_id"] for row in rows)
    return [row["name"] for row in rows if row["key_id"] not in keys.ids]


async def count_plain(connection: Reader) -> int:
    (row,) = await connection.fetch("select count(*) as n from secrets where sealed is null")
    return int(row["n"])


async def closed_secrets(connection: Reader, names: Iterable[str], keys: SecretKeys = NO_KEYS) -> dict[str, str]:
    """Those of these secrets that do not exist or cannot be opened, with a message. No value is opened."""
    wanted = sorted(set(names))
    rows = await connection.fetch("select name, key_id from secrets where name = any($1)", wanted)
    await keys.learn(row["key_id"] for row in rows)
    ids = {row["name"]: row["key_id"] for row in rows}
    missing = {name: missing_secret(name) for name in wanted if name not in ids}
    return missing | {name: without_key(name, id_) for name, id_ in ids.items() if id_ not in ("", *keys.ids)}


async def seal_all(database: Database, keys: SecretKeys, *, plain_only: bool = False) -> tuple[int, list[str]]:
    """Encrypts all values under the current key, if there is one; each row is locked while it is changed.

    `plain_only` omits values that are encrypted under another key.

    Returns:
        The number of encrypted values, and the names of secrets that no key opens.
    """
    sealed, unreadable, after = 0, [], ""
    while keys.current:
        async with database.transaction() as connection:
            rows = await connection.fetch(
                """select name, value, sealed, key_id, deployments, admins_only from secrets
                    where name > $1 and (sealed is null or key_id <> $2 and not $3)
                    order by name limit $4 for update""",
                after,
                keys.current,
                plain_only,
                _BATCH,
            )
            for row in rows:
                stored = _stored(row, keys)
                if stored.problem:
                    unreadable.append(row["name"])
                    continue
                await connection.execute(
                    "update secrets set value = null, sealed = $2, key_id = $3 where name = $1",
                    row["name"],
                    keys.seal(row["name"], stored.value),
                    keys.current,
                )
                sealed += 1
        if len(rows) < _BATCH:
            break
        after = rows[-1]["name"]
    return sealed, unreadable


def _stored(row: Any, keys: SecretKeys) -> StoredSecret:
    scope = SecretScope(tuple(row["deployments"]), row["admins_only"])
    if row["sealed"] is None:
        return StoredSecret(row["value"], scope)
    try:
        return StoredSecret(keys.open(row["name"], row["key_id"], row["sealed"]), scope)
    except UnreadableSecretError as error:
        return StoredSecret("", scope, str(error))


async def problems_of_secrets(
    connection: Reader, specs: Mapping[str, tuple[str, DeploymentSpec]], role: str
) -> list[FieldProblem]:
    """Secrets in the environment that a deployment may not have. The dispatch checks whether they exist.

    Args:
        connection: only reads.
        specs: names and specs of deployments, by their path in the manifest.
        role: the role of the key that writes them; empty: Gpuward itself does.
    """
    named = [
        (path, deployment, variable, secret)
        for path, (deployment, spec) in specs.items()
        for variable, secret in spec.secrets.items()
    ]
    if not named:
        return []
    query = "select name, deployments, admins_only from secrets where name = any($1)"
    rows = await connection.fetch(query, sorted({secret for *_, secret in named}))
    scopes = {row["name"]: SecretScope(tuple(row["deployments"]), row["admins_only"]) for row in rows}
    return [
        FieldProblem(join_path(join_path(path, "env"), variable), refusal)
        for path, deployment, variable, secret in named
        if secret in scopes and (refusal := scopes[secret].refusal(secret, deployment, role))
    ]
