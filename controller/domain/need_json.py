"""Needs and analysis errors as JSON, as the store keeps them with a revision."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from controller.domain.instances import NeedError
from controller.domain.placement import Need, Share
from schemas.reasons import Reason


def need_to_json(need: Need) -> dict[str, Any]:
    """A need as JSON."""
    return {
        "memory_mib": need.memory_mib,
        "host_memory_mib": need.host_memory_mib,
        "parts": dict(need.parts),
        "heads": need.heads,
        "kv_heads": need.kv_heads,
        "vocab": need.vocab,
        "vision_heads": need.vision_heads,
        "notes": list(need.notes),
        "shares": [asdict(share) for share in need.shares],
        "refused": [str(reason) for reason in need.refused],
        "compute_capability": need.compute_capability,
        "context": need.context,
        "sequences": need.sequences,
        "by_engine": [[name, need_to_json(one)] for name, one in need.by_engine],
    }


def need_from_json(value: dict[str, Any]) -> Need:
    """The need that `need_to_json` wrote."""
    return Need(
        memory_mib=value["memory_mib"],
        host_memory_mib=value["host_memory_mib"],
        parts=value["parts"],
        heads=value["heads"],
        kv_heads=value.get("kv_heads"),
        vocab=value["vocab"],
        vision_heads=value.get("vision_heads"),
        notes=tuple(value["notes"]),
        shares=tuple(Share(**share) for share in value.get("shares", ())),
        refused=tuple(Reason(reason) for reason in value.get("refused", ())),
        compute_capability=(capability[0], capability[1]) if (capability := value.get("compute_capability")) else None,
        context=value.get("context"),
        sequences=value.get("sequences"),
        by_engine=tuple((name, need_from_json(one)) for name, one in value.get("by_engine", ())),
    )


def need_error_to_json(error: NeedError) -> dict[str, Any]:
    """An analysis error as JSON."""
    return {
        "message": error.message,
        "retryable": error.retryable,
        "attempts": error.attempts,
        "retry_at": error.retry_at.isoformat() if error.retry_at else None,
    }


def need_error_from_json(value: dict[str, Any]) -> NeedError:
    """The error that `need_error_to_json` wrote."""
    retry_at = value["retry_at"]
    return NeedError(
        message=value["message"],
        retryable=value["retryable"],
        attempts=value["attempts"],
        retry_at=datetime.fromisoformat(retry_at) if retry_at else None,
    )
