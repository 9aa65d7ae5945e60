"""Fields of a body by which a client would reach beyond its own request at an engine. Pure.

Engines have them for operators and routers of their own. Through the gateway one key could name another request,
use an adapter that it may not ask for, or let an engine work on where no limit counts it.
"""

from collections.abc import Mapping
from typing import Any, Final

_NAMED: Final = "requests are named by the gateway; send an X-Request-Id header instead"
_ADAPTER: Final = "adapters are asked for by their names in model"
_PLACE: Final = "the gateway chooses where a request runs"
_ADVICE: Final[Mapping[str, str]] = {
    "background": "an engine works only while its client waits; keep the connection open",
    "bootstrap_host": _PLACE,
    "bootstrap_port": _PLACE,
    "bootstrap_room": _PLACE,
    "data_parallel_rank": _PLACE,
    "disagg_prefill_dp_rank": _PLACE,
    "id_slot": _PLACE,
    "kv_transfer_params": _PLACE,
    "lora": _ADAPTER,
    "lora_id": _ADAPTER,
    "lora_path": _ADAPTER,
    "request_id": _NAMED,
    "rid": _NAMED,
    "routed_dp_rank": _PLACE,
    "session_params": "engines keep no sessions for clients; send the whole conversation",
    "slot_id": _PLACE,
}
CONTROLS: Final = frozenset(_ADVICE)
# Images have a background of another kind, which does not control an engine.
_OF_IMAGES: Final = "background"
_IMAGES_HAVE: Final = ("auto", "opaque", "transparent")
_ANY: Final[tuple[Any, ...]] = (None, -1, "", [])  # what clients write for "none" and "any"


def control_in(content: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first such field with a value, and what to do instead; None without one."""
    for name, value in content.items():
        if name == _OF_IMAGES and value in _IMAGES_HAVE:
            continue
        if name in CONTROLS and value is not False and value not in _ANY:
            return name, _ADVICE[name]
    return None


def advice_on_part(name: str) -> str:
    """What to do instead of a form's part with such a name, whatever is in it; empty: it may pass."""
    return _ADVICE.get(name, "") if name != _OF_IMAGES else ""
