"""The migrated tables as SQLModel classes, for single rows. Private to `store/`; a test holds them to the migration.

Constraints, indexes and triggers live in the migration alone: these classes never create a table. `filled` columns are
the database's to fill in where nothing is given.
"""

import uuid as uuids
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Float, Integer, LargeBinary, SmallInteger, Text, Uuid
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL
from sqlmodel import SQLModel

from controller.store.core.columns import TIME, XID8, filled, given, key, maybe


class LeaseRow(SQLModel, table=True):
    """Who leads; one row."""

    __tablename__ = "lease"
    id: int = key(SmallInteger)
    term: int = given(BigInteger)
    holder: str = given(Text)
    acquired_at: datetime = given(TIME)
    renewed_at: datetime = given(TIME)
    ttl_s: float = given(Float(53))


class DeploymentRow(SQLModel, table=True):
    """What a user wants, and what the reconciler derived."""

    __tablename__ = "deployments"
    uid: uuids.UUID = key(Uuid)
    name: str = given(Text)
    generation: int = given(BigInteger)
    revision: int = given(BigInteger)
    spec: dict[str, Any] = given(JSONB)
    created_at: datetime = filled(TIME)
    deleted_at: datetime | None = maybe(TIME)
    phase: str = filled(Text)
    phase_since: datetime = filled(TIME)
    reason: str = filled(Text)
    message: str = filled(Text)
    ready: int = filled(Integer)
    observed_generation: int = filled(BigInteger)
    conditions: list[Any] = filled(JSONB)
    version: int = filled(BigInteger)


class RevisionRow(SQLModel, table=True):
    """An immutable spec."""

    __tablename__ = "revisions"
    deployment_uid: uuids.UUID = key(Uuid)
    generation: int = key(BigInteger)
    spec: dict[str, Any] = given(JSONB)
    input_hash: str = given(Text)
    need: dict[str, Any] | None = maybe(JSONB)
    need_error: dict[str, Any] | None = maybe(JSONB)
    created_at: datetime = filled(TIME)


class IntentRow(SQLModel, table=True):
    """A limit on the wanted replicas."""

    __tablename__ = "intents"
    deployment_uid: uuids.UUID = key(Uuid)
    source: str = key(Text)
    max_replicas: int = given(Integer)
    reason: str = filled(Text)
    message: str = filled(Text)
    created_at: datetime = filled(TIME)
    instances: list[str] = filled(ARRAY(Text))


class InstanceRow(SQLModel, table=True):
    """One replica."""

    __tablename__ = "instances"
    id: str = key(Text)
    deployment_uid: uuids.UUID = given(Uuid)
    revision: int = given(BigInteger)
    phase: str = given(Text)
    phase_since: datetime = filled(TIME)
    reason: str = filled(Text)
    message: str = filled(Text)
    epoch: int = filled(Integer)
    restarts: int = filled(Integer)
    failures: int = filled(Integer)
    not_before: datetime | None = maybe(TIME)
    stop_reason: str | None = maybe(Text)
    replaces: str | None = maybe(Text)
    explain: dict[str, Any] | None = maybe(JSONB)
    created_at: datetime = filled(TIME)
    running_since: datetime | None = maybe(TIME)
    engine: str | None = maybe(Text)
    layout: dict[str, Any] | None = maybe(JSONB)
    pushed_out_for: str | None = maybe(Text)


class RelocationRow(SQLModel, table=True):
    """An instance that is to move so that others fit."""

    __tablename__ = "relocations"
    id: int = filled(BigInteger, key=True)
    deployment_uid: uuids.UUID = given(Uuid)
    instance_id: str = given(Text)
    epoch: int = given(Integer)
    workers: list[str] = given(ARRAY(Text))
    gpus: list[str] = given(ARRAY(Text))
    demand: str = filled(Text)
    state: str = filled(Text)
    copy_id: str | None = maybe(Text)
    message: str = filled(Text)
    created_at: datetime = filled(TIME)
    started_at: datetime | None = maybe(TIME)
    ended_at: datetime | None = maybe(TIME)
    rooms: dict[str, Any] = filled(JSONB)


class WorkerRow(SQLModel, table=True):
    """A GPU host."""

    __tablename__ = "workers"
    id: uuids.UUID = key(Uuid)
    name: str = given(Text)
    credential_hash: bytes = given(LargeBinary)
    proxy_secret: str = given(Text)
    created_at: datetime = filled(TIME)
    deleted_at: datetime | None = maybe(TIME)
    cordoned: bool = filled(Boolean)
    draining: bool = filled(Boolean)
    confirmed_dead: datetime | None = maybe(TIME)
    phase: str = filled(Text)
    phase_since: datetime = filled(TIME)
    reason: str = filled(Text)
    fence_until: datetime | None = maybe(TIME)
    session: int = filled(BigInteger)
    boot_id: str = filled(Text)
    agent_version: str = filled(Text)
    hostname: str = filled(Text)
    os: str = filled(Text)
    arch: str = filled(Text)
    driver: str | None = maybe(Text)
    simulated: bool = filled(Boolean)
    labels: dict[str, str] = filled(JSONB)
    engines: list[str] | None = maybe(JSONB)
    proxy_address: str = filled(Text)
    gpus_known: bool = filled(Boolean)
    reported_at: datetime | None = maybe(TIME)
    highest_term: int = filled(BigInteger)
    changed: int = filled(XID8)


class LivenessRow(SQLModel, table=True):
    """When a worker was last heard of."""

    __tablename__ = "worker_liveness"
    worker_id: uuids.UUID = key(Uuid)
    session: int = given(BigInteger)
    connected: bool = given(Boolean)
    last_seen: datetime = given(TIME)
    clean: bool = filled(Boolean)


class DeviceRow(SQLModel, table=True):
    """What can be claimed."""

    __tablename__ = "devices"
    uuid: str = key(Text)
    worker_id: uuids.UUID = given(Uuid)
    kind: str = given(Text)
    index: int = given(Integer)
    model: str = filled(Text)
    compute_capability: str | None = maybe(Text)
    memory_mib: int = given(BigInteger)
    reported_mib: int = given(BigInteger)
    cpu_milli: int = filled(BigInteger)
    health: str = filled(Text)
    health_reason: str = filled(Text)
    mig_mode: bool = filled(Boolean)
    present: bool = filled(Boolean)
    claimed_mib: int = filled(BigInteger)
    claimed_cpu_milli: int = filled(BigInteger)
    claims: int = filled(Integer)
    exclusive_claims: int = filled(Integer)
    changed: int = filled(XID8)
    vendor: str = filled(Text)
    reserved_mib: int = filled(BigInteger)
    foreign_mib: int = filled(BigInteger)


class ReadingRow(SQLModel, table=True):
    """A device's newest reading."""

    __tablename__ = "device_readings"
    device: str = key(Text)
    used_mib: int | None = maybe(BigInteger)
    utilization: float | None = maybe(REAL)
    read_at: datetime = given(TIME)
    foreign_mib: int = filled(BigInteger)


class ClaimRow(SQLModel, table=True):
    """Who holds what."""

    __tablename__ = "claims"
    device: str = key(Text)
    instance_id: str = key(Text)
    epoch: int = key(Integer)
    rank: int = filled(Integer)
    memory_mib: int = given(BigInteger)
    cpu_milli: int = filled(BigInteger)
    exclusive: bool = filled(Boolean)
    position: int = filled(Integer)
    created_at: datetime = filled(TIME)


class ProcessRow(SQLModel, table=True):
    """What an agent said of a process."""

    __tablename__ = "processes"
    instance_id: str = key(Text)
    epoch: int = key(Integer)
    rank: int = key(Integer)
    worker_id: uuids.UUID = given(Uuid)
    state: str = given(Text)
    reason: str | None = maybe(Text)
    exit_code: int | None = maybe(Integer)
    message: str = filled(Text)
    pid: int | None = maybe(Integer)
    ready: bool = filled(Boolean)
    seq: int = given(BigInteger)
    session: int = given(BigInteger)
    reported_at: datetime = filled(TIME)


class CommandRow(SQLModel, table=True):
    """A durable order to an agent."""

    __tablename__ = "commands"
    id: int = filled(BigInteger, key=True)
    worker_id: uuids.UUID = given(Uuid)
    instance_id: str = given(Text)
    epoch: int = given(Integer)
    rank: int = given(Integer)
    verb: str = given(Text)
    payload: dict[str, Any] = given(JSONB)
    created_at: datetime = filled(TIME)
    state: str = filled(Text)
    sent_at: datetime | None = maybe(TIME)
    answered_at: datetime | None = maybe(TIME)
    code: str = filled(Text)
    message: str = filled(Text)


class EventRow(SQLModel, table=True):
    """A fact."""

    __tablename__ = "events"
    id: int = filled(BigInteger, key=True)
    at: datetime = filled(TIME)
    reason: str = given(Text)
    message: str = given(Text)
    evidence: dict[str, Any] = filled(JSONB)
    objects: list[str] = given(ARRAY(Text))


class KeyRow(SQLModel, table=True):
    """An API key, by its hash."""

    __tablename__ = "api_keys"
    id: uuids.UUID = key(Uuid)
    name: str = given(Text)
    role: str = given(Text)
    hash: bytes = given(LargeBinary)
    created_at: datetime = filled(TIME)
    revoked_at: datetime | None = maybe(TIME)


class TokenRow(SQLModel, table=True):
    """A join token, by its hash."""

    __tablename__ = "join_tokens"
    id: uuids.UUID = key(Uuid)
    hash: bytes = given(LargeBinary)
    created_at: datetime = filled(TIME)
    expires_at: datetime = given(TIME)
    used_at: datetime | None = maybe(TIME)
    used_by: str | None = maybe(Text)
    revoked_at: datetime | None = maybe(TIME)


class SecretRow(SQLModel, table=True):
    """A stored secret."""

    __tablename__ = "secrets"
    name: str = key(Text)
    value: str = given(Text)
    updated_at: datetime = filled(TIME)
