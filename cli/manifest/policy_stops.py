"""What policies would stop at once because of an apply: as text, and asked about before it happens."""

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
# What the apply itself reports, and an older controller, which does not know.
_REPORTED_ELSEWHERE: Final = frozenset({"invalid", "forbidden", "unauthenticated", "not_found", "method_not_allowed"})


def confirm_stops(api: Api, manifests: Sequence[Manifest], *, yes: bool) -> None:
    """Shows what policies would stop, and returns once that is agreed to; at once where nothing would stop.

    Without a terminal it is shown alone.

    Raises:
        CliError: the answer is no.
    """
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
    """What policies would stop: a line for each kind, with the first names. `reasons`: each with its reason below."""
    lines: list[str] = []
    for count, action, text in (
        (stops.stop, "stop", "{} would stop"),
        (stops.scale_down, "scale_down", "{} would be scaled down"),
        (stops.unknown, "unknown", "unknown whether {} would stop"),
    ):
        if count:
            shown = [one for one in stops.items if one.action == action][:_MOST_SHOWN]
            more = f" and {count - len(shown)} more" if count > len(shown) else ""
            what = text.format(f"{count} deployment{'s' if count > 1 else ''}")
            lines.append(f"{what}: {', '.join(map(_named, shown))}{more}")
            lines += [f"  {one.deployment}: {one.message}" for one in shown if reasons]
    return lines


def _named(one: PolicyStop) -> str:
    if one.action != "scale_down" or one.replicas is None:
        return one.deployment
    return f"{one.deployment} ({one.stops} of {one.stops + one.replicas} replicas)"
