"""Join tokens: expiring, exchanged once or a stated number of times for a worker's own credential."""

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import asyncpg
import orjson
from msgspec.structs import asdict
from sqlalchemy import func, text
from sqlmodel import col, select

from controller.domain.events import NewEvent
from controller.store.access.key_reads import hash_secret
from controller.store.access.keys import as_uuid
from controller.store.access.orm_rows import TokenRow
from controller.store.access.proxy_secrets import PURPOSE, write_proxy_secret
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database, view_of
from controller.store.core.events import notify, write_events
from controller.store.core.orm import write_event_in_session
from controller.store.core.refusals import (
    CredentialTakenError,
    NotFoundError,
    RefusedError,
    TokenRefusedError,
    WorkerNameTakenError,
)
from controller.store.workers.credentials import new_proxy_secret
from controller.store.workers.stated import write_stated
from schemas.api.access import TokenCreated, TokenView
from schemas.wire import CREDENTIAL_HEADER, JoinResponse, new_credential

TOKEN_PREFIX: Final = "gpj_"  # noqa: S105 - the common prefix, not a secret
DEFAULT_TTL_S: Final = 3600.0
_WAS_DELETED: Final = "select exists (select from workers where name = $1 and deleted_at is not null)"
_WRITE_TERMS: Final = text(
    """insert into token_terms (token_id, worker_name, labels, networks)
       values (:token_id, :worker_name, cast(cast(:labels as text) as jsonb), cast(:networks as text[]))"""
)
_TERMS: Final = "select token_id, worker_name, labels::text as labels, networks from token_terms"
_BY_CREDENTIAL: Final = "workers_credential"  # the index that keeps credentials unique


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """Terms of a token: the statements on workers that join with it."""

    name: str | None = None  # the only permitted name; None: any
    labels: Mapping[str, str] = field(default_factory=dict)
    networks: Sequence[str] = ()


_ANY_HOST: Final = TokenTerms()


async def create_token(
    database: Database, *, ttl_s: float = DEFAULT_TTL_S, uses: int = 1, terms: TokenTerms = _ANY_HOST
) -> TokenCreated:
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
        await session.flush()
        if terms != _ANY_HOST:
            await session.execute(_WRITE_TERMS, _stored(row.id, terms))
        hosts = "" if uses == 1 else f" and {uses} hosts"
        message = f"a join token was created, valid for {ttl_s:g} s{hosts}"
        await write_event_in_session(session, NewEvent("token_created", message, (f"token:{row.id}",)))
    return TokenCreated(token=token, **asdict(_view(row, terms)))


async def list_tokens(database: Database) -> list[TokenView]:
    """All tokens, including used and revoked ones, oldest first."""
    async with database.session() as session:
        rows = (await session.execute(select(TokenRow).order_by(col(TokenRow.created_at), col(TokenRow.id)))).scalars()
        terms = {stored.token_id: _read_terms(stored) for stored in await session.execute(text(_TERMS))}
        return [_view(row, terms.get(row.id, _ANY_HOST)) for row in rows]


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
        stored = (await session.execute(text(_TERMS + " where token_id = :token_id"), {"token_id": row.id})).first()
        return _view(row, _ANY_HOST if stored is None else _read_terms(stored))


async def redeem(
    database: Database, token: str, name: str, chosen: str | None = None, keys: SecretKeys = NO_KEYS
) -> JoinResponse:
    """Exchanges a token for the credential of a new worker, as often as its uses allow.

    A repeated call with a chosen credential, from an agent whose answer was lost, has the same result and changes
    nothing, even if the token is no longer valid. Only that agent knows the credential.

    Args:
        database: the ledger.
        token: the token as the agent sent it.
        name: the new worker's name.
        chosen: the credential that the agent has chosen; None: a new one is made.
        keys: encrypt the secret of the worker's proxy.

    Raises:
        TokenRefusedError: the token is unknown, used up, revoked or expired.
        WorkerNameTakenError: a live worker has that name; the token stays valid.
        CredentialTakenError: the chosen credential is or was another worker's; the token stays valid.
    """
    credential = chosen or new_credential()
    try:
        worker = await _join(database, token, name, credential, keys)
    except RefusedError:
        before = None if chosen is None else await _joined_before(database, token, name, credential)
        if before is None:
            raise
        worker = before
    return JoinResponse(worker=name, worker_uid=str(worker), credential=credential)


async def _join(database: Database, token: str, name: str, credential: str, keys: SecretKeys) -> uuid.UUID:
    """Uses the token and writes the worker; returns its id."""
    worker = uuid.uuid4()
    try:
        async with database.transaction() as connection:
            used = await connection.fetchval(
                """update join_tokens set used_at = now(), used_by = $2, uses = uses + 1
                    where hash = $1 and uses < max_uses and (used_at is null or max_uses > 1)
                      and revoked_at is null and expires_at > now()
                      and not exists (select from token_terms t
                                       where t.token_id = join_tokens.id and t.worker_name <> $2)
                returning id""",
                hash_secret(token),
                name,
            )
            if used is None:
                raise TokenRefusedError(
                    "the join token is unknown, used up, revoked, expired or for another name; make one with "
                    "`gpuward join-token create`"
                )
            terms = await connection.fetchrow("select * from token_terms where token_id = $1", used)
            await connection.execute(
                "insert into workers (id, name, credential_hash, joined_with) values ($1, $2, $3, $4)",
                worker,
                name,
                hash_secret(credential),
                used,
            )
            await write_proxy_secret(connection, worker, new_proxy_secret(), keys.branch(PURPOSE))
            named = terms is not None and terms["worker_name"] is not None
            if not named and await connection.fetchval(_WAS_DELETED, name):
                raise WorkerNameTakenError(
                    f"a worker named {name!r} was deleted, so only a token for this name may give it to another host: "
                    f"gpuward join-token create --name {name}; or choose another name with --name"
                )
            labels, networks = ({}, []) if terms is None else (terms["labels"], terms["networks"])
            await write_stated(connection, worker, labels, networks)
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
            f"a worker named {name!r} exists; start its agent with its own data folder, or choose another name with "
            f"--name; or delete the old worker, gpuward delete worker {name}, and join with a token for its name: "
            f"gpuward join-token create --name {name}"
        ) from error
    return worker


async def _joined_before(database: Database, token: str, name: str, credential: str) -> uuid.UUID | None:
    """The live worker that has joined with this token, name and credential, if any."""
    async with database.connection() as connection:
        worker: uuid.UUID | None = await connection.fetchval(
            """select w.id from workers w join join_tokens t on t.id = w.joined_with
                where w.credential_hash = $1 and w.name = $2 and w.deleted_at is null and t.hash = $3""",
            hash_secret(credential),
            name,
            hash_secret(token),
        )
    return worker


def _stored(token_id: uuid.UUID, terms: TokenTerms) -> dict[str, Any]:
    labels, networks = orjson.dumps(dict(terms.labels)).decode(), list(terms.networks)
    return {"token_id": token_id, "worker_name": terms.name, "labels": labels, "networks": networks}


def _read_terms(row: Any) -> TokenTerms:
    return TokenTerms(row.worker_name, orjson.loads(row.labels), tuple(row.networks))


def _view(row: TokenRow, terms: TokenTerms) -> TokenView:
    labels, networks = dict(terms.labels), list(terms.networks)
    return view_of(TokenView, row.model_dump(), name=terms.name, labels=labels, advertise_networks=networks)
