"""Receipts: the ledger's record of a start, sealed by the controller, and kept by the agent with the process.

A ledger that lost commits, by a restore or a failover, learns from them what runs. The agent cannot read anything into
them: only what was started by a controller of this ledger is believed. Pure.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from controller.domain.placement import Layout, PlannedClaim


@dataclass(frozen=True, slots=True)
class StartReceipt:
    """One process of a start, with the claims that it has on its worker.

    Attributes:
        worker_id: on which it was started.
        revision: generation of the spec that it runs.
        created_at: of the instance: its age in the queue.
        engine: chosen by placement; empty: its spec leaves no choice.
        layout: chosen by placement, without memory, which is in the claims.
    """

    worker_id: str
    instance: str
    epoch: int
    rank: int
    deployment_uid: str
    revision: int
    created_at: datetime
    engine: str
    layout: Layout | None
    claims: tuple[PlannedClaim, ...]

    @property
    def key(self) -> tuple[str, int, int]:
        """Of the process."""
        return self.instance, self.epoch, self.rank

    @property
    def ranks(self) -> int:
        """How many processes the start has."""
        return 1 if self.layout is None else self.layout.workers


def seal(facts: dict[str, Any], key: bytes) -> str:
    """The text that an agent keeps. `facts`: as the ledger has them, see `receipt_of`."""
    body = orjson.dumps(facts)
    return f"{_text(body)}.{_text(_digest(body, key))}"


def open_sealed(text: str, key: bytes) -> dict[str, Any] | None:
    """What a controller of this ledger has sealed; None if it was none of them."""
    body, _, digest = text.partition(".")
    try:
        facts, given = urlsafe_b64decode(body), urlsafe_b64decode(digest)
    except ValueError:
        return None
    if not hmac.compare_digest(given, _digest(facts, key)):
        return None
    found: dict[str, Any] = orjson.loads(facts)
    return found


def told_process(text: str, worker_id: str) -> tuple[str, int, int] | None:
    """The process of this worker that an unverified receipt names; None: another worker's, or malformed."""
    try:
        facts = orjson.loads(urlsafe_b64decode(text.partition(".")[0]))
        process = str(facts["instance"]), int(facts["epoch"]), int(facts["rank"])
        return process if facts["worker_id"] == worker_id else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def receipt_of(facts: dict[str, Any]) -> StartReceipt:
    """The receipt of sealed facts."""
    rank = facts["rank"]
    layout = facts["layout"]
    return StartReceipt(
        worker_id=facts["worker_id"],
        instance=facts["instance"],
        epoch=facts["epoch"],
        rank=rank,
        deployment_uid=facts["deployment_uid"],
        revision=facts["revision"],
        created_at=datetime.fromisoformat(facts["created_at"]),
        engine=facts["engine"],
        layout=None if layout is None else Layout(memory_mib=0, exclusive=False, **layout),
        claims=tuple(PlannedClaim(**claim, rank=rank) for claim in facts["claims"]),
    )


def _digest(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, body, hashlib.sha256)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()
