"""Findings about the controller as this host sees it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from agent.decide.doctor.finding import Finding, fails, ok, warning
from agent.decide.unreachable import Unreachable, needs_tls
from schemas.wire import SPOKEN

_WARN_S: Final = 5.0
_FAIL_S: Final = 300.0
_BAD_REQUEST: Final = 400


@dataclass(frozen=True, slots=True)
class ControllerProbe:
    """Responses of the controller's address."""

    url: str | None  # None: not given
    error: Unreachable | None = None  # why it cannot be reached; None: it answers
    status: int = 0  # of the answer to /healthz
    ahead_s: float | None = None  # lead of its clock over this host's in seconds; None: it sent no date

    credential: Literal["none", "unread", "unasked", "accepted", "refused"] = "unasked"
    refusal: str = ""  # the controller's message
    protocol: int | None = None  # the common one; None: none, or not tried
    token: bool = False  # a join token was given


def judge_controller(probe: ControllerProbe) -> Iterator[Finding]:
    if probe.url is None:
        yield warning("controller", "no address given", "Name it: --controller URL, or GPUWARD_AGENT_CONTROLLER_URL.")
        return
    error = probe.error
    if probe.status == _BAD_REQUEST and probe.url.startswith("http:"):
        error = needs_tls(probe.url)  # only a port that speaks TLS answers 400 to the simplest request
    if error is not None:
        yield fails("controller", error.why, error.remedy)
        return
    if probe.status != 200:  # noqa: PLR2004 - HTTP's
        remedy = "See the controller's log. If this is not a Gpuward controller, correct the address."
        yield fails("controller", f"{probe.url} answers {probe.status} to /healthz", remedy)
        return
    yield ok("controller", f"{probe.url} answers")
    yield from _credential(probe)


def _credential(probe: ControllerProbe) -> Iterator[Finding]:
    join = "Join again: give the agent a new token from `gpuward join-token create`."
    match probe.credential:
        case "none" if probe.token:
            yield ok("credential", "this host has not joined yet; the agent joins with its token")
        case "none":
            remedy = "Give the agent a token from `gpuward join-token create`: --join-token-file FILE."
            yield warning("credential", "this host has not joined yet, and has no token", remedy)
        case "unread":
            remedy = "Run `gpuward doctor` as the agent's user, such as root."
            yield warning("credential", "the agent's credential is not readable for this user", remedy)
        case "refused":
            yield fails("credential", f"the controller refuses this worker: {probe.refusal}", join)
        case "accepted":
            yield ok("credential", "the controller accepts this worker's credential")
            yield _protocol(probe)
        case "unasked":
            remedy = "Run `gpuward doctor` again in a moment."
            yield warning("credential", f"not checked: {probe.refusal or 'the controller did not answer'}", remedy)


def _protocol(probe: ControllerProbe) -> Finding:
    if probe.protocol is None:
        remedy = "Upgrade the older one of agent and controller: the controller first."
        return fails("protocol", f"the controller speaks none of this agent's protocols ({SPOKEN})", remedy)
    if probe.protocol < SPOKEN.highest:
        text = (
            f"protocol {probe.protocol}: the controller is older than this agent, which speaks up to {SPOKEN.highest}"
        )
        return warning("protocol", text, "Upgrade the controller, so that it takes all that this agent reports.")
    return ok("protocol", f"protocol {probe.protocol}")


def judge_clock(probe: ControllerProbe) -> Finding | None:
    """None if the clocks cannot be compared."""
    if probe.ahead_s is None:
        return None
    off_s = abs(probe.ahead_s)
    way = "behind" if probe.ahead_s > 0 else "ahead of"
    if off_s < _WARN_S:
        return ok("clock", "this host's clock agrees with the controller's")
    text = f"this host's clock is {off_s:.0f} s {way} the controller's"
    remedy = "Run a time service on both hosts, such as chrony; see `timedatectl`."
    return fails("clock", text, remedy) if off_s >= _FAIL_S else warning("clock", text, remedy)
