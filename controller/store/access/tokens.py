"""Join tokens: expiring, exchanged once or a stated number of times for a worker's own credential."""

import secrets
import uuid
from datetime import timedelta
from typing import Final

import asyncpg
from sqlalchemy import func
from sqlmodel import col, select

from controller.domain.events import NewEvent
from controller.store.access.key_reads import hash_secret
from controller.store.access.keys import as_uuid
from controller.store.access.orm_rows import TokenRow
from controller.store.core.database import Database
from controller.store.core.events import write_event_in_session, write_events
from controller.store.core.notify import notify
from controller.store.core.refusals import (
    CredentialTakenError,
    NotFoundError,
    RefusedError,
    TokenRefusedError,
    WorkerNameTakenError,
)
from controller.store.workers.credentials import new_proxy_secret
from schemas.api.access import TokenCreated, TokenView
from schemas.wire import CREDENTIAL_HEADER, JoinResponse, new_credential

TOKEN_PREFIX: Final = "gpj_"  # noqa: S105 - the common prefix, not a secret
DEFAULT_TTL_S: Final = 3600.0
_BY_CREDENTIAL: Final = "workers_credential"  # the index that keeps credentials unique


async def create_token(database: Database, *, ttl_s: float = DEFAULT_TTL_S, uses: int = 1) -> TokenCreated:
    """Creates a token that joins `uses` hosts within `ttl_s` seconds of the database's clock."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    async with database.session() as session:
        now = (await session.execute(select(func.now()))).scalar_one()
        row = TokenRow(
            id=uuid.uuid4(),
            hash=hash_secret(token),
            created_at=now,
            expires_at=now + timedelta(seconds=ttl_s),
            uses=0,
            max_uses=uses,
        )
        session.add(row)
        hosts = "" if uses == 1 else f" and {uses} hosts"
        message = f"a join token was created, valid for {ttl_s:g} s{hosts}"
        await write_event_in_session(session, NewEvent("token_created", message, (f"token:{row.id}",)))
    return TokenCreated(token=token, **_view(row).model_dump())


async def list_tokens(database: Database) -> list[TokenView]:
    """All tokens, including used and revoked ones, oldest first."""
    async with database.session() as session:
        rows = (await session.execute(select(TokenRow).order_by(col(TokenRow.created_at), col(TokenRow.id)))).scalars()
        return [_view(row) for row in rows]


async def revoke_token(database: Database, token_id: str) -> TokenView:
    """Revokes a token; repeating it changes nothing.

    Raises:
        NotFoundError: no token has this id.
    """
    async with database.session() as session:
        row = await session.get(TokenRow, as_uuid(token_id), with_for_update=True)
        if row is None:
            raise NotFoundError(f"no join token has the id {token_id!r}; `gpuward join-token list` shows the ids")
        if row.revoked_at is None:
            row.revoked_at = (await session.execute(select(func.now()))).scalar_one()
            event = NewEvent("token_revoked", f"join token {row.id} was revoked", (f"token:{row.id}",))
            await write_event_in_session(session, event)
        return _view(row)


async def redeem(database: Database, token: str, name: str, chosen: str | None = None) -> JoinResponse:
    """Exchanges a token for the credential of a new worker; works as often as it may, also under concurrent attempts.

    A repeated call with a chosen credential, from an agent whose answer was lost, has the same result once more and
    changes nothing, whatever has become of the token. Only that agent knows the credential.

    Args:
        database: of the ledger.
        token: as it was given to the agent.
        name: that the worker gets.
        chosen: the credential that the agent has chosen; None: one is made.

    Raises:
        TokenRefusedError: the token is unknown, used up, revoked or expired.
        WorkerNameTakenError: a live worker has that name; the token stays valid.
        CredentialTakenError: the chosen credential is or was another worker's; the token stays valid.
    """
    credential = chosen or new_credential()
    try:
        worker = await _join(database, token, name, credential)
    except RefusedError:
        before = None if chosen is None else await _joined_before(database, token, name, credential)
        if before is None:
            raise
        worker = before
    return JoinResponse(worker=name, worker_uid=str(worker), credential=credential)


async def _join(database: Database, token: str, name: str, credential: str) -> uuid.UUID:
    """Uses the token once, and writes the worker; returns its id."""
    worker = uuid.uuid4()
    try:
        async with database.transaction() as connection:
            used = await connection.fetchval(
                """update join_tokens set used_at = now(), used_by = $2, uses = uses + 1
                    where hash = $1 and uses < max_uses and (used_at is null or max_uses > 1)
                      and revoked_at is null and expires_at > now()
                returning id""",
                hash_secret(token),
                name,
            )
            if used is None:
                raise TokenRefusedError(
                    "the join token is unknown, used up, revoked or expired; make one with `gpuward join-token create`"
                )
            await connection.execute(
                """insert into workers (id, name, credential_hash, proxy_secret, joined_with)
                   values ($1, $2, $3, $4, $5)""",
                worker,
                name,
                hash_secret(credential),
                new_proxy_secret(),
                used,
            )
            message = f"worker {name} joined"
            objects, evidence = (f"worker:{worker}", f"token:{used}"), {"token": str(used)}
            await write_events(connection, [NewEvent("joined", message, objects, evidence, actor=f"token:{used}")])
            await notify(connection, "worker", [str(worker)])
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name == _BY_CREDENTIAL:
            raise CredentialTakenError(
                f"{CREDENTIAL_HEADER}: another worker has or had this credential; choose a new one"
            ) from error
        raise WorkerNameTakenError(
            f"a worker named {name!r} exists; start its agent with its own data folder, choose another name "
            f"with --name, or delete the old worker first: gpuward delete worker {name}"
        ) from error
    return worker


async def _joined_before(database: Database, token: str, name: str, credential: str) -> uuid.UUID | None:
    """The worker that has joined with this token, name and credential and is not deleted; None: there is none."""
    async with database.connection() as connection:
        found: uuid.UUID | None = await connection.fetchval(
            """select w.id from workers w join join_tokens t on t.id = w.joined_with
                where w.credential_hash = $1 and w.name = $2 and w.deleted_at is null and t.hash = $3""",
            hash_secret(credential),
            name,
            hash_secret(token),
        )
    return found


def _view(row: TokenRow) -> TokenView:
    return TokenView(
        id=str(row.id),
        created_at=row.created_at,
        expires_at=row.expires_at,
        used_at=row.used_at,
        used_by=row.used_by,
        uses=row.uses,
        max_uses=row.max_uses,
        revoked_at=row.revoked_at,
    )
