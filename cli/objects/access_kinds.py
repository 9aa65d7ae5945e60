"""Kinds of what gives access: keys, join tokens, gateways. Pure."""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from cli.objects.kind import Column, Kind
from cli.text.formatting import age, or_dash

if TYPE_CHECKING:  # slow to import
    from schemas.api.access import KeyView, SecretView, TokenView


def _key_state(key: "KeyView", now: datetime) -> str:
    if key.revoked_at:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    return "rotated" if key.rotated_to else "open"


def _key_limits(key: "KeyView") -> str:
    limits = {"rpm": key.rpm, "tpm": key.tpm, "tokens/day": key.tokens_per_day, "parallel": key.parallel}
    return ", ".join(f"{value} {name}" for name, value in limits.items() if value is not None)


def _key_expires(key: "KeyView", now: datetime) -> str:
    if key.expires_at is None:
        return "never"
    return f"in {age(now, key.expires_at)}" if key.expires_at > now else "over"


def _token_state(view: "TokenView", now: datetime) -> str:
    if view.revoked_at is not None:
        return "revoked"
    if view.max_uses == 1 and view.uses:
        return f"used by {view.used_by}" if view.used_by else "used"
    state = "used up" if view.uses >= view.max_uses else "expired" if view.expires_at <= now else "open"
    return state if view.max_uses == 1 else f"{state}, {view.uses} of {view.max_uses} hosts joined"


def _secret_scope(secret: "SecretView", _now: datetime) -> str:
    return ",".join([*(secret.deployments or ["all"]), *(["role:admin"] if secret.admins_only else [])])


def _secret_state(secret: "SecretView", _now: datetime) -> str:
    if not secret.readable:
        return "unreadable: no key"
    return "encrypted" if secret.encrypted else "not encrypted"


KEYS: Final = Kind(
    "key",
    "keys",
    "KeyView",
    (
        Column("ID", lambda k, _: k.id),
        Column("NAME", lambda k, _: or_dash(k.name)),
        Column("ROLE", lambda k, _: k.role),
        Column("AGE", lambda k, now: age(k.created_at, now), rank=2),
        Column("STATE", _key_state),
        Column("MODELS", lambda k, _: ",".join(k.models) or "all", rank=3),
        Column("LIMITS", lambda k, _: or_dash(_key_limits(k)), rank=4),
        Column("EXPIRES", _key_expires, rank=1),
        Column("USED", lambda k, now: f"{age(k.used_at, now)} ago" if k.used_at else "never", rank=5),
    ),
    by_name=False,
)
TOKENS: Final = Kind(
    "token",
    "tokens",
    "TokenView",
    (
        Column("ID", lambda t, _: t.id),
        Column("STATE", _token_state),
        Column("AGE", lambda t, now: age(t.created_at, now)),
        Column("EXPIRES", lambda t, now: f"in {age(now, t.expires_at)}" if t.expires_at > now else "over"),
        Column("FOR", lambda t, _: t.name or "any", rank=1),
        Column("LABELS", lambda t, _: or_dash(",".join(f"{k}={v}" for k, v in sorted(t.labels.items()))), rank=2),
    ),
    by_name=False,
)
SECRETS: Final = Kind(
    "secret",
    "secrets",
    "SecretView",
    (
        Column("NAME", lambda s, _: s.name),
        Column("FOR", _secret_scope),
        Column("STATE", _secret_state),
        Column("KEY", lambda s, _: or_dash(s.key_id), rank=2),
        Column("SET", lambda s, now: age(s.updated_at, now), rank=1),
        Column("USED", lambda s, now: age(s.used_at, now) if s.used_at else "-", rank=3),
    ),
    by_name=False,
)
GATEWAYS: Final = Kind(
    "gateway",
    "gateways",
    "GatewayView",
    (
        Column("NAME", lambda g, _: g.name),
        Column("STATE", lambda g, _: g.state),
        Column("IN FLIGHT", lambda g, _: str(g.in_flight)),
        Column("WAITING", lambda g, _: str(g.waiting)),
        Column("REPORTED", lambda g, now: age(g.seen_at, now)),
    ),
    by_name=False,
)
