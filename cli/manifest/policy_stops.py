"""The deployments that policies would stop at once after an apply: as text, and confirmed before the apply."""

import sys
from collections.abc import Sequence
from typing import Final

from cli.errors import RefusedError
from cli.manifest.files import manifest_as_json
from cli.terminal.confirm import confirm_at_terminal
from cli.transport.client import Api
from cli.transport.paths import parse, path_of
from schemas.api.plan import PolicyStop, PolicyStops
from schemas.manifest.parse import Manifest
from schemas.printing import block

_MOST_SHOWN: Final = 10
# The apply reports these errors itself; an older controller has no such path.
_REPORTED_ELSEWHERE: Final = frozenset({"invalid", "forbidden", "unauthenticated", "not_found", "method_not_allowed"})


def confirm_stops(api: Api, manifests: Sequence[Manifest], *, yes: bool) -> None:
    """Prints what policies would stop, and confirms it on a terminal. Raises `CliError` if the answer is no."""
    body = {"manifests": [manifest_as_json(manifest) for manifest in manifests]}
    try:
        stops = parse(PolicyStops, api.post(path_of("plan", "policies"), body))
    except RefusedError as error:
        if error.code not in _REPORTED_ELSEWHERE:
            print(block(f"warning: what policies would stop is unknown: {error}"), file=sys.stderr, flush=True)
        return
    for line in stop_lines(stops):
        print(block(line), file=sys.stderr, flush=True)
    if stops.stop + stops.scale_down:
        confirm_at_terminal("Apply?", yes=yes)


def stop_lines(stops: PolicyStops, *, reasons: bool = False) -> list[str]:
    """A line for each kind of action, with the first names; `reasons`: and a line with each reason."""
    lines: list[str] = []
    for count, action, text in (
        (stops.stop, "stop", "{} would stop"),
        (stops.scale_down, "scale_down", "{} would be scaled down"),
        (stops.unknown, "unknown", "unknown whether {} would stop"),
    ):
        if count:
            shown = [stop for stop in stops.items if stop.action == action][:_MOST_SHOWN]
            more = f" and {count - len(shown)} more" if count > len(shown) else ""
            head = text.format(f"{count} deployment{'s' if count > 1 else ''}")
            lines.append(f"{head}: {', '.join(map(_named, shown))}{more}")
            lines += [f"  {stop.deployment}: {stop.message}" for stop in shown if reasons]
    return lines


def _named(stop: PolicyStop) -> str:
    if stop.action != "scale_down" or stop.replicas is None:
        return stop.deployment
    return f"{stop.deployment} ({stop.stops} of {stop.stops + stop.replicas} replicas)"
