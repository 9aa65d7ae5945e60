"""Utilization policies as users write them: what counts as idle, for how long, and what is done then."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from schemas.base import Wire
from schemas.quantities import Seconds, parse_duration_s

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
NO_POLICY: Final = "none"  # in a deployment: not even the default policy applies
MIN_WINDOW_S: Final = 30
MAX_WINDOW_S: Final = 86_400
DEFAULT_SIGNING_SECRET: Final = "webhook"  # noqa: S105 - a secret's name, not a secret


def _percent(value: object) -> int:
    """A whole percentage; text is taken where it holds nothing but digits."""
    wrong = "must be a whole number from 1 to 100 (percent, without the sign)"
    if isinstance(value, str) and re.fullmatch(r"\d{1,3}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{wrong}, not {value!r}")
    if value == 0:
        raise ValueError("0 can never fire, since no utilization is below it; write 1 to 100, or leave the policy out")
    if not 1 <= value <= 100:  # noqa: PLR2004 - percent
        raise ValueError(f"{wrong}, not {value!r}")
    return value


def _window_s(value: object) -> int:
    """A window in whole seconds."""
    wrong = f"{value!r} is no window; write 30s to 24h in whole seconds, such as 5m"
    try:
        seconds = parse_duration_s(value)
    except ValueError:
        raise ValueError(wrong) from None
    if seconds != int(seconds) or not MIN_WINDOW_S <= seconds <= MAX_WINDOW_S:
        raise ValueError(wrong)
    return int(seconds)


def _share(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number above 0 and at most 1, not {value!r}")
    return value


def _url(text: str) -> str:
    wrong = f"{text!r} is no URL to post to; write https://host/path"
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
        raise ValueError("holds a password; leave it out: what is sent is signed")
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


class Webhook(Wire):
    """Where actions are told, signed (Standard Webhooks) with the stored secret of that name."""

    url: Url
    secret: Annotated[str, Field(pattern=NAME_PATTERN)] = DEFAULT_SIGNING_SECRET


def _as_webhook(value: object) -> Any:
    if value is not None and not isinstance(value, str | Mapping | Webhook):
        raise ValueError(f"must be a URL, such as https://host/path, or {{url: ..., secret: ...}}, not {value!r}")
    return {"url": value} if isinstance(value, str) else value


class UtilizationPolicy(Wire):
    """What counts as idle and what is done then; inline in a deployment, or the greater part of a policy object.

    Attributes:
        min_gpu_utilization: percent; a sample is low when its maximum is strictly below.
        time_window: seconds that must all be low.
        gpus: whether all of an instance's GPUs, any of them or their mean must be low.
        action: `stop` the deployment once all its replicas are idle, `scale_down` the idle replica (one stays), or
            `notify` only.
        grace_period: seconds after `running` that do not count.
        min_coverage: share of the window that samples must speak for.
        dry_run: tell what would be done, and do nothing.
        ignore_requests: requests in flight or waiting do not keep an instance.
        webhook: where actions are told; None: nowhere.
    """

    min_gpu_utilization: Percent
    time_window: Window
    gpus: Literal["all", "any", "mean"] = "all"
    action: Literal["stop", "scale_down", "notify"] = "stop"
    grace_period: Seconds = 0.0
    min_coverage: Annotated[float, BeforeValidator(_share), Field(gt=0, le=1)] = 0.8
    dry_run: bool = False
    ignore_requests: bool = False
    webhook: Annotated[Webhook | None, BeforeValidator(_as_webhook)] = None


class PolicySpec(UtilizationPolicy):
    """The spec of a `UtilizationPolicy` object. `default`: for every deployment without a policy of its own."""

    default: bool = False

    def bare(self) -> UtilizationPolicy:
        """What is done to those it applies to, whoever they are."""
        return UtilizationPolicy.model_construct(**{f: getattr(self, f) for f in UtilizationPolicy.model_fields})


def _not_none(name: str) -> str:
    if name == NO_POLICY:
        raise ValueError(f"{NO_POLICY!r} is how a deployment says that it wants no policy; choose another name")
    return name


class PolicyManifest(PolicySpec):
    """A `UtilizationPolicy` as written in a file."""

    kind: Literal["UtilizationPolicy"] = "UtilizationPolicy"
    name: Annotated[
        str,
        Field(pattern=NAME_PATTERN, description="a DNS label: lower case letters, digits, '-'"),
        AfterValidator(_not_none),
    ]

    def spec(self) -> PolicySpec:
        """The spec without kind and name."""
        return PolicySpec.model_construct(**{f: getattr(self, f) for f in PolicySpec.model_fields})
