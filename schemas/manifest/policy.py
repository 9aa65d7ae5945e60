"""The manifest of a `UtilizationPolicy`: what counts as idle, for how long, and what is done then."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from schemas.fields import NAME_PATTERN, Seconds, Strict
from schemas.redaction_mark import MARK
from schemas.units import parse_duration_s

NO_POLICY: Final = "none"  # in a deployment: it declines even the default policy
MIN_WINDOW_S: Final = 30
MAX_WINDOW_S: Final = 86_400
LEAST_COVERAGE: Final = 0.5  # with less, a verdict would rest on the smaller part of its window
DEFAULT_SIGNING_SECRET: Final = "webhook"  # noqa: S105 - the name of a secret, not a secret


def _percent(value: object) -> int:
    """A whole percentage. Text is accepted if it holds only digits."""
    wrong = "must be a whole number from 1 to 100, in percent without the sign"
    if isinstance(value, str) and re.fullmatch(r"\d{1,3}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{wrong}; got {value!r}")
    if value == 0:
        raise ValueError("must be 1 to 100, got 0; utilization is never below 0, so remove the policy instead")
    if not 1 <= value <= 100:  # noqa: PLR2004 - percent
        raise ValueError(f"{wrong}; got {value!r}")
    return value


def _window_s(value: object) -> int:
    """A window in whole seconds."""
    wrong = f"{value!r} is not a valid window; write 30s to 24h in whole seconds, such as 5m"
    try:
        seconds = parse_duration_s(value)
    except ValueError:
        raise ValueError(wrong) from None
    if seconds != int(seconds) or not MIN_WINDOW_S <= seconds <= MAX_WINDOW_S:
        raise ValueError(wrong)
    return int(seconds)


def _share(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number above 0 and at most 1, got {value!r}")
    return value


def _url(text: str) -> str:
    if MARK in text:  # so answers show one that holds a secret; manifests with it are refused
        return text
    wrong = f"{text!r} is not a valid URL; write https://host/path"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{wrong} ({error})") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(wrong)
    if " " in text or not text.isprintable():
        raise ValueError(f"{wrong}, without blanks")
    if parts.username or parts.password:
        raise ValueError("contains a user name or password; remove it: reports are signed instead")
    return text


Percent = Annotated[
    int,
    BeforeValidator(_percent),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 100, "description": "percent"}),
]
Window = Annotated[
    int,
    BeforeValidator(_window_s),
    PlainSerializer(int, return_type=int),
    WithJsonSchema({"type": ["integer", "string"], "description": "30s to 24h: seconds, or a text such as 5m"}),
]
Url = Annotated[str, Field(max_length=2048), AfterValidator(_url)]


class Webhook(Strict):
    """Where the actions of a policy are reported. Each report is signed as Standard Webhooks specifies."""

    url: Url = Field(description="Address to post reports to: http or https, without a user name or password.")
    secret: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        DEFAULT_SIGNING_SECRET, description="Name of the stored secret that signs the reports."
    )


def _as_webhook(value: object) -> Any:
    if value is not None and not isinstance(value, str | Mapping | Webhook):
        raise ValueError(f"must be a URL, such as https://host/path, or {{url: ..., secret: ...}}, got {value!r}")
    return {"url": value} if isinstance(value, str) else value


class UtilizationPolicy(Strict):
    """What counts as idle and what is done then: inline in a deployment, or the main part of a policy object."""

    min_gpu_utilization: Percent = Field(
        description="GPU utilization in percent, 1 to 100. A sample is low if its maximum is strictly below."
    )
    time_window: Window = Field(
        description="How long every sample must be low, 30s to 24h: whole seconds, or a text such as `5m`."
    )
    gpus: Literal["all", "any", "mean"] = Field(
        "all", description="Which GPUs of an instance must be low: `all` of them, `any` of them, or their `mean`."
    )
    action: Literal["stop", "scale_down", "notify"] = Field(
        "stop",
        description="What to do about idle instances. `stop`: stop the deployment once all its replicas are idle. "
        "`scale_down`: remove idle replicas but keep one. `notify`: only record and report it.",
    )
    grace_period: Seconds = Field(
        0.0, description="Time after an instance begins to run that does not count towards the window."
    )
    min_coverage: Annotated[float, BeforeValidator(_share), Field(gt=0, le=1)] = Field(
        0.8,
        description="Share of the window that samples must cover, 0.5 to 1. With less the verdict is unknown and "
        "nothing is done. A smaller share that was stored by an earlier version acts as 0.5.",
    )
    dry_run: bool = Field(default=False, description="Only record what the policy would do.")
    ignore_requests: bool = Field(
        default=False, description="Treat an instance as idle even while it has requests in flight or waiting."
    )
    webhook: Annotated[Webhook | None, BeforeValidator(_as_webhook)] = Field(
        None, description="Where actions are reported: a URL, or `{url: ..., secret: ...}`. Absent: nowhere."
    )

    @property
    def needed_coverage(self) -> float:
        """The share of the window that samples must cover. Earlier versions accepted and stored smaller ones."""
        return max(self.min_coverage, LEAST_COVERAGE)

    @property
    def coverage_warning(self) -> str:
        """What to know of a stored `min_coverage` that is no longer accepted; empty if it is accepted."""
        if self.min_coverage >= LEAST_COVERAGE:
            return ""
        return f"min_coverage: {self.min_coverage:g} acts as {LEAST_COVERAGE:g}, the least; write 0.5 to 1"


class PolicySpec(UtilizationPolicy):
    """The spec of a `UtilizationPolicy`: every field of the manifest except kind and name."""

    default: bool = Field(
        default=False,
        description="Apply the policy to every deployment without a policy of its own. "
        "At most one policy is the default.",
    )

    def bare(self) -> UtilizationPolicy:
        """The policy alone, without `default`."""
        return self.part(UtilizationPolicy)


def _not_reserved(name: str) -> str:
    if name == NO_POLICY:
        raise ValueError(f"{NO_POLICY!r} is reserved: deployments decline policies with it; choose another name")
    return name


class PolicyManifest(PolicySpec):
    """A `UtilizationPolicy` as written in a file."""

    kind: Literal["UtilizationPolicy"] = Field("UtilizationPolicy", description="`UtilizationPolicy`.")
    name: Annotated[str, Field(pattern=NAME_PATTERN), AfterValidator(_not_reserved)] = Field(
        description="Name of the policy, unique among policies: a DNS label of at most 63 lower case letters, digits "
        "and `-`. `none` is reserved."
    )

    def spec(self) -> PolicySpec:
        """The spec without kind and name."""
        return self.part(PolicySpec)
