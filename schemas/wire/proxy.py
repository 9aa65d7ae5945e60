"""The agent's proxy: paths and headers. Every request carries Authorization: Bearer <proxy_secret>."""

from collections.abc import Iterable
from typing import Final

PROXY_ENGINE_PREFIX: Final = "/engines"  # /engines/{instance}/{path...}
PROXY_CACHE: Final = "/cache"  # GET lists cached models; POST ?model=hf:org/name&unused_for_s=N removes some
PROXY_LOGS_PREFIX: Final = "/logs"  # /logs/{instance}?tail=N&follow=1&previous=1&rank=R&epoch=E&times=1&since_ms=N
# The type of a log with `times=1`, by lines: `L<ms since 1970> <1: exact, 0: no later> <position> <text>`, `C` once the
# existing log is sent, `E{json}` at the end of the process. Earlier agents send plain text instead.
TIMED_LOG: Final = "application/x-gpuward-log"
# Marks of the agent on its own answers. It strips headers with their prefix from the engines', which cannot forge them.
OUR_HEADERS: Final = "x-gpuward-"
PROXY_REFUSAL_HEADER: Final = "X-Gpuward-Refusal"  # no byte went to the engine; the value is a code
PROXY_OUTCOME_HEADER: Final = "X-Gpuward-Outcome"  # the engine may have seen the request: engine_died, timed_out
PROXY_IN_FLIGHT_HEADER: Final = "X-Gpuward-In-Flight"  # requests that the instance has, of all gateways
# Headers of a single connection (RFC 9110, 7.6.1).
HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip


def is_final(status: int) -> bool:
    """Whether a status ends an HTTP exchange. Neither interim statuses nor a switch of protocols do."""
    return 200 <= status <= 599  # noqa: PLR2004 - the range of RFC 9110, 15


def end_to_end(headers: Iterable[tuple[str, str]], dropped: frozenset[str]) -> list[tuple[str, str]]:
    """The headers for the next hop: without `dropped` (in lower case), ours, and those that Connection names."""
    given = [(name, name.lower(), value) for name, value in headers]
    named = {name.strip().lower() for _, low, value in given if low == "connection" for name in value.split(",")}
    hop_by_hop = dropped | named
    return [(name, value) for name, low, value in given if low not in hop_by_hop and not low.startswith(OUR_HEADERS)]
