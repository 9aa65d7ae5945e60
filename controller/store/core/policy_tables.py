"""The tables of policies, samples and history as SQLModel classes. As `tables.py`, held to the migration by a test."""

import uuid as uuids
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Float, Integer, SmallInteger, Text, Uuid
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL
from sqlmodel import SQLModel

from controller.store.core.columns import TIME, XID8, filled, given, key, maybe


class PolicyRow(SQLModel, table=True):
    """A utilization policy."""

    __tablename__ = "policies"
    uid: uuids.UUID = key(Uuid)
    name: str = given(Text)
    generation: int = given(BigInteger)
    spec: dict[str, Any] = given(JSONB)
    is_default: bool = filled(Boolean)
    created_at: datetime = filled(TIME)


class SampleRow(SQLModel, table=True):
    """One GPU over one sampling period. The table has no key: progress says what is there. The ORM wants one."""

    __tablename__ = "samples"
    at: datetime = given(TIME)
    device: str = given(Text)
    worker_id: uuids.UUID = given(Uuid)
    seq: int = given(BigInteger)
    period_s: float = given(REAL)
    mean: float = given(REAL)
    max: float = given(REAL)
    used_mib: int | None = maybe(BigInteger)
    processes: list[Any] = filled(JSONB)
    tx: int = filled(XID8)
    __mapper_args__ = {"primary_key": ["device", "at", "seq"]}


class SampleProgressRow(SQLModel, table=True):
    """Up to where a worker's samples are kept."""

    __tablename__ = "sample_progress"
    worker_id: uuids.UUID = key(Uuid)
    boot_id: str = given(Text)
    seq: int = given(BigInteger)


class VerdictRow(SQLModel, table=True):
    """How an instance is judged now."""

    __tablename__ = "policy_verdicts"
    instance_id: str = key(Text)
    epoch: int = given(Integer)
    deployment_uid: uuids.UUID = given(Uuid)
    policy: str = given(Text)
    policy_uid: uuids.UUID | None = maybe(Uuid)
    policy_generation: int = given(BigInteger)
    action: str = given(Text)
    dry_run: bool = given(Boolean)
    verdict: str = given(Text)
    reason: str = filled(Text)
    message: str = filled(Text)
    since: datetime = filled(TIME)
    low_since: datetime | None = maybe(TIME)
    due_at: datetime | None = maybe(TIME)
    evidence: dict[str, Any] = filled(JSONB)
    acted: str = filled(Text)


class ActionRow(SQLModel, table=True):
    """What a policy did, with its evidence."""

    __tablename__ = "policy_actions"
    id: int = filled(BigInteger, key=True)
    at: datetime = filled(TIME)
    policy: str = given(Text)
    policy_uid: uuids.UUID | None = maybe(Uuid)
    policy_generation: int = given(BigInteger)
    action: str = given(Text)
    dry_run: bool = given(Boolean)
    deployment_uid: uuids.UUID = given(Uuid)
    deployment: str = given(Text)
    instances: list[str] = given(ARRAY(Text))
    gpus: float = given(Float(53))
    evidence: dict[str, Any] = given(JSONB)
    ended_at: datetime | None = maybe(TIME)


class TotalsRow(SQLModel, table=True):
    """What those actions of a policy came to that are kept no more."""

    __tablename__ = "policy_totals"
    id: int = filled(BigInteger, key=True)
    policy: str = given(Text)
    policy_uid: uuids.UUID | None = maybe(Uuid)
    actions: int = given(BigInteger)
    would_have_acted: int = given(BigInteger)
    gpu_s: float = given(Float(53))


class DeliveryRow(SQLModel, table=True):
    """A webhook's message on its way."""

    __tablename__ = "webhook_deliveries"
    id: uuids.UUID = key(Uuid)
    action_id: int | None = maybe(BigInteger)
    url: str = given(Text)
    secret: str = given(Text)
    payload: str = given(Text)
    created_at: datetime = filled(TIME)
    attempts: int = filled(Integer)
    not_before: datetime = filled(TIME)
    finished_at: datetime | None = maybe(TIME)
    delivered: bool = filled(Boolean)
    error: str = filled(Text)


class MinuteRow(SQLModel, table=True):
    """One minute of a GPU, or of one instance on it."""

    __tablename__ = "sample_minutes"
    device: str = key(Text)
    instance_id: str = filled(Text, key=True)
    minute: datetime = key(TIME)
    deployment_uid: uuids.UUID | None = maybe(Uuid)
    mean: float = given(REAL)
    max: float = given(REAL)
    samples: int = given(Integer)
    covered_s: float = given(REAL)
    used_mib: int | None = maybe(BigInteger)


class RollupProgressRow(SQLModel, table=True):
    """Up to where samples are in the minutes."""

    __tablename__ = "rollup_progress"
    id: int = filled(SmallInteger, key=True)
    horizon: int = given(XID8)
    at: datetime = given(TIME)


class ClaimSpanRow(SQLModel, table=True):
    """A claim on a GPU that has ended."""

    __tablename__ = "claim_spans"
    id: int = filled(BigInteger, key=True)
    device: str = given(Text)
    worker_id: uuids.UUID = given(Uuid)
    instance_id: str = given(Text)
    epoch: int = given(Integer)
    deployment_uid: uuids.UUID = given(Uuid)
    deployment: str = given(Text)
    memory_mib: int = given(BigInteger)
    device_mib: int = given(BigInteger)
    exclusive: bool = given(Boolean)
    running_since: datetime | None = maybe(TIME)
    began_at: datetime = given(TIME)
    ended_at: datetime = given(TIME)
