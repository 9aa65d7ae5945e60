"""The migrated tables as SQLModel classes, for single rows. Private to `store/`; a test holds them to the migration.

Constraints, indexes and triggers live in the migration alone: these classes never create a table. `_filled` columns are
the database's to fill in where nothing is given.
"""

import uuid as uuids
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, FetchedValue, Float, Integer, LargeBinary, SmallInteger, Text, Uuid
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL, TIMESTAMP
from sqlalchemy.types import TypeEngine, UserDefinedType
from sqlmodel import Field, SQLModel

_TIME = TIMESTAMP(timezone=True)


class Xid8(UserDefinedType[int]):
    """PostgreSQL's transaction number."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name in SQL."""
        return "xid8"


_XID8 = Xid8()


def _key(kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> Any:
    return Field(sa_column=Column(kind, primary_key=True, autoincrement=False, nullable=False))


def _given(kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> Any:
    return Field(sa_column=Column(kind, nullable=False))


def _filled(kind: TypeEngine[Any] | type[TypeEngine[Any]], *, key: bool = False) -> Any:
    column: Column[Any] = Column(kind, nullable=False, primary_key=key, server_default=FetchedValue())
    return Field(default=None, sa_column=column)


def _maybe(kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> Any:
    return Field(default=None, sa_column=Column(kind, nullable=True))


class LeaseRow(SQLModel, table=True):
    """Who leads; one row."""

    __tablename__ = "lease"
    id: int = _key(SmallInteger)
    term: int = _given(BigInteger)
    holder: str = _given(Text)
    acquired_at: datetime = _given(_TIME)
    renewed_at: datetime = _given(_TIME)
    ttl_s: float = _given(Float(53))


class DeploymentRow(SQLModel, table=True):
    """What a user wants, and what the reconciler derived."""

    __tablename__ = "deployments"
    uid: uuids.UUID = _key(Uuid)
    name: str = _given(Text)
    generation: int = _given(BigInteger)
    revision: int = _given(BigInteger)
    spec: dict[str, Any] = _given(JSONB)
    created_at: datetime = _filled(_TIME)
    deleted_at: datetime | None = _maybe(_TIME)
    phase: str = _filled(Text)
    phase_since: datetime = _filled(_TIME)
    reason: str = _filled(Text)
    message: str = _filled(Text)
    ready: int = _filled(Integer)
    observed_generation: int = _filled(BigInteger)
    conditions: list[Any] = _filled(JSONB)
    version: int = _filled(BigInteger)


class RevisionRow(SQLModel, table=True):
    """An immutable spec."""

    __tablename__ = "revisions"
    deployment_uid: uuids.UUID = _key(Uuid)
    generation: int = _key(BigInteger)
    spec: dict[str, Any] = _given(JSONB)
    input_hash: str = _given(Text)
    need: dict[str, Any] | None = _maybe(JSONB)
    need_error: dict[str, Any] | None = _maybe(JSONB)
    created_at: datetime = _filled(_TIME)


class IntentRow(SQLModel, table=True):
    """A limit on the wanted replicas."""

    __tablename__ = "intents"
    deployment_uid: uuids.UUID = _key(Uuid)
    source: str = _key(Text)
    max_replicas: int = _given(Integer)
    reason: str = _filled(Text)
    message: str = _filled(Text)
    created_at: datetime = _filled(_TIME)


class InstanceRow(SQLModel, table=True):
    """One replica."""

    __tablename__ = "instances"
    id: str = _key(Text)
    deployment_uid: uuids.UUID = _given(Uuid)
    revision: int = _given(BigInteger)
    phase: str = _given(Text)
    phase_since: datetime = _filled(_TIME)
    reason: str = _filled(Text)
    message: str = _filled(Text)
    epoch: int = _filled(Integer)
    restarts: int = _filled(Integer)
    failures: int = _filled(Integer)
    not_before: datetime | None = _maybe(_TIME)
    stop_reason: str | None = _maybe(Text)
    replaces: str | None = _maybe(Text)
    explain: dict[str, Any] | None = _maybe(JSONB)
    created_at: datetime = _filled(_TIME)


class WorkerRow(SQLModel, table=True):
    """A GPU host."""

    __tablename__ = "workers"
    id: uuids.UUID = _key(Uuid)
    name: str = _given(Text)
    credential_hash: bytes = _given(LargeBinary)
    proxy_secret: str = _given(Text)
    created_at: datetime = _filled(_TIME)
    deleted_at: datetime | None = _maybe(_TIME)
    cordoned: bool = _filled(Boolean)
    draining: bool = _filled(Boolean)
    confirmed_dead: datetime | None = _maybe(_TIME)
    phase: str = _filled(Text)
    phase_since: datetime = _filled(_TIME)
    reason: str = _filled(Text)
    fence_until: datetime | None = _maybe(_TIME)
    session: int = _filled(BigInteger)
    boot_id: str = _filled(Text)
    agent_version: str = _filled(Text)
    hostname: str = _filled(Text)
    os: str = _filled(Text)
    arch: str = _filled(Text)
    driver: str | None = _maybe(Text)
    simulated: bool = _filled(Boolean)
    labels: dict[str, str] = _filled(JSONB)
    proxy_address: str = _filled(Text)
    gpus_known: bool = _filled(Boolean)
    reported_at: datetime | None = _maybe(_TIME)
    highest_term: int = _filled(BigInteger)
    changed: int = _filled(_XID8)


class LivenessRow(SQLModel, table=True):
    """When a worker was last heard of."""

    __tablename__ = "worker_liveness"
    worker_id: uuids.UUID = _key(Uuid)
    session: int = _given(BigInteger)
    connected: bool = _given(Boolean)
    last_seen: datetime = _given(_TIME)
    clean: bool = _filled(Boolean)


class DeviceRow(SQLModel, table=True):
    """What can be claimed."""

    __tablename__ = "devices"
    uuid: str = _key(Text)
    worker_id: uuids.UUID = _given(Uuid)
    kind: str = _given(Text)
    index: int = _given(Integer)
    model: str = _filled(Text)
    compute_capability: str | None = _maybe(Text)
    memory_mib: int = _given(BigInteger)
    reported_mib: int = _given(BigInteger)
    cpu_milli: int = _filled(BigInteger)
    health: str = _filled(Text)
    health_reason: str = _filled(Text)
    mig_mode: bool = _filled(Boolean)
    present: bool = _filled(Boolean)
    claimed_mib: int = _filled(BigInteger)
    claimed_cpu_milli: int = _filled(BigInteger)
    claims: int = _filled(Integer)
    exclusive_claims: int = _filled(Integer)
    changed: int = _filled(_XID8)


class ReadingRow(SQLModel, table=True):
    """A device's newest reading."""

    __tablename__ = "device_readings"
    device: str = _key(Text)
    used_mib: int | None = _maybe(BigInteger)
    utilization: float | None = _maybe(REAL)
    read_at: datetime = _given(_TIME)


class ClaimRow(SQLModel, table=True):
    """Who holds what."""

    __tablename__ = "claims"
    device: str = _key(Text)
    instance_id: str = _key(Text)
    epoch: int = _key(Integer)
    rank: int = _filled(Integer)
    memory_mib: int = _given(BigInteger)
    cpu_milli: int = _filled(BigInteger)
    exclusive: bool = _filled(Boolean)
    position: int = _filled(Integer)
    created_at: datetime = _filled(_TIME)


class ProcessRow(SQLModel, table=True):
    """What an agent said of a process."""

    __tablename__ = "processes"
    instance_id: str = _key(Text)
    epoch: int = _key(Integer)
    rank: int = _key(Integer)
    worker_id: uuids.UUID = _given(Uuid)
    state: str = _given(Text)
    reason: str | None = _maybe(Text)
    exit_code: int | None = _maybe(Integer)
    message: str = _filled(Text)
    pid: int | None = _maybe(Integer)
    ready: bool = _filled(Boolean)
    seq: int = _given(BigInteger)
    session: int = _given(BigInteger)
    reported_at: datetime = _filled(_TIME)


class CommandRow(SQLModel, table=True):
    """A durable order to an agent."""

    __tablename__ = "commands"
    id: int = _filled(BigInteger, key=True)
    worker_id: uuids.UUID = _given(Uuid)
    instance_id: str = _given(Text)
    epoch: int = _given(Integer)
    rank: int = _given(Integer)
    verb: str = _given(Text)
    payload: dict[str, Any] = _given(JSONB)
    created_at: datetime = _filled(_TIME)
    state: str = _filled(Text)
    sent_at: datetime | None = _maybe(_TIME)
    answered_at: datetime | None = _maybe(_TIME)
    code: str = _filled(Text)
    message: str = _filled(Text)


class EventRow(SQLModel, table=True):
    """A fact."""

    __tablename__ = "events"
    id: int = _filled(BigInteger, key=True)
    at: datetime = _filled(_TIME)
    reason: str = _given(Text)
    message: str = _given(Text)
    evidence: dict[str, Any] = _filled(JSONB)
    objects: list[str] = _given(ARRAY(Text))


class KeyRow(SQLModel, table=True):
    """An API key, by its hash."""

    __tablename__ = "api_keys"
    id: uuids.UUID = _key(Uuid)
    name: str = _given(Text)
    role: str = _given(Text)
    hash: bytes = _given(LargeBinary)
    created_at: datetime = _filled(_TIME)
    revoked_at: datetime | None = _maybe(_TIME)


class TokenRow(SQLModel, table=True):
    """A join token, by its hash."""

    __tablename__ = "join_tokens"
    id: uuids.UUID = _key(Uuid)
    hash: bytes = _given(LargeBinary)
    created_at: datetime = _filled(_TIME)
    expires_at: datetime = _given(_TIME)
    used_at: datetime | None = _maybe(_TIME)
    used_by: str | None = _maybe(Text)
    revoked_at: datetime | None = _maybe(_TIME)


class SecretRow(SQLModel, table=True):
    """A stored secret."""

    __tablename__ = "secrets"
    name: str = _key(Text)
    value: str = _given(Text)
    updated_at: datetime = _filled(_TIME)
