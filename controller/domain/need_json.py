"""Needs and analysis errors as JSON, as the store keeps them with a revision."""

from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any, Final

from controller.domain.instances import NeedError
from controller.domain.placement import Need, Share
from schemas.placement_reasons import Reason

_TYPED: Final = {"notes", "shares", "refused", "compute_capability", "by_engine"}
_SHARE: Final = tuple(f.name for f in fields(Share))
_PLAIN: Final = tuple(f.name for f in fields(Need) if f.name not in _TYPED)


def need_to_json(need: Need) -> dict[str, Any]:
    """A need as JSON."""
    return asdict(need)


def need_from_json(value: dict[str, Any]) -> Need:
    """The need that `need_to_json` wrote. Fields that an older version did not write have their defaults."""
    capability = value.get("compute_capability")
    stored = {name: value[name] for name in _PLAIN if name in value}
    return Need(
        **stored,
        notes=tuple(value["notes"]),
        shares=tuple(_share_from_json(share) for share in value.get("shares", ())),
        refused=tuple(Reason(reason) for reason in value.get("refused", ())),
        compute_capability=(capability[0], capability[1]) if capability else None,
        by_engine=tuple((name, need_from_json(one)) for name, one in value.get("by_engine", ())),
    )


def _share_from_json(value: dict[str, Any]) -> Share:
    """A share; what a newer version wrote besides is left out."""
    return Share(**{name: value[name] for name in _SHARE if name in value})


def need_error_to_json(error: NeedError) -> dict[str, Any]:
    """An analysis error as JSON."""
    return asdict(error) | {"retry_at": error.retry_at.isoformat() if error.retry_at else None}


def need_error_from_json(value: dict[str, Any]) -> NeedError:
    """The error that `need_error_to_json` wrote. Fields that an older version did not write have their defaults."""
    retry_at = value["retry_at"]
    error = NeedError(**{f.name: value[f.name] for f in fields(NeedError) if f.name in value})
    return replace(error, retry_at=datetime.fromisoformat(retry_at) if retry_at else None)
