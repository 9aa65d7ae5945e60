"""How requests to a model are served. The gateway reads it; of it engines get the adapters alone."""

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from schemas.fields import Seconds, Strict, Text, Whole

LONGEST_S: Final = 86_400.0
_Wait = Annotated[Seconds, Field(gt=0, le=LONGEST_S)]


MAX_ALIASES: Final = 64
_MAX_NAME: Final = 256
# Servers take NAME=PLACE, and sglang MODEL:NAME in a request; braces are what the agent fills in.
_ADAPTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,255}")
_ADAPTER_PLACE: Final = re.compile(r"(?:path:/|hf:[\w.-]+/[\w.-]+$)[^={}\x00-\x1f\x7f]*")


def _number_or_auto(value: object) -> object:
    """Refuses what is neither a whole number nor `auto`."""
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"must be a whole number or auto, got {value!r}")
    return value


class Queue(Strict):
    """Requests that wait at the gateways because every replica is at its limit, or none runs."""

    length: Annotated[Whole, Field(ge=0, le=100_000)] = Field(
        512, description="Most requests that wait, at all gateways together. 0: none waits."
    )
    wait: _Wait = Field(600.0, description="Longest time that a request waits for a replica. At most 24h.")


def _on_or_off(value: object) -> object:
    """YAML reads these words as booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


# Each is compared with a request's path byte by byte, so none needs an escape.
_APP_PATH: Final = re.compile(r"/|(?:/[A-Za-z0-9._~!$&'()*+,=:@-]+)+")
MAX_APP_PATHS: Final = 64
_MAX_APP_PATH: Final = 256


class Apps(Strict):
    """A custom server's own paths, which programs reach at `/apps/NAME/...` with an API key."""

    paths: Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_APP_PATHS)] = Field(
        description="Paths of the server that requests may ask for, each with all below it, such as `[/render, "
        "/jobs]`. `[/]`: all. The server sees a path without `/apps/NAME`."
    )
    csp: Literal["sandbox", "none"] = Field(
        "sandbox",
        description="Content-Security-Policy of the answers. `sandbox`: what a browser shows of them has no rights of "
        "the dashboard's origin. `none`: they have no such header.",
    )

    @field_validator("paths")
    @classmethod
    def _listed_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if len(path) > _MAX_APP_PATH or not _APP_PATH.fullmatch(path):
                raise ValueError(f"{path!r} is not a valid path; write / or /part/part, without an escape or a final /")
            if any(not part.strip(".") for part in path.split("/")[1:] if part):
                raise ValueError(f"{path!r} has a part of dots alone; write the path that it leads to")
        if len(set(value)) < len(value):
            raise ValueError("names a path twice; remove one of them")
        return value


class ServingLimits(Strict):
    """How requests to the model are served. All but the adapters changes in place, for requests that come later."""

    aliases: Annotated[tuple[Text, ...], Field(max_length=MAX_ALIASES)] = Field(
        (), description="Other names under which requests may ask for the model, such as `[gpt-4o-mini]`."
    )
    adapters: Annotated[dict[Text, Text], Field(max_length=MAX_ALIASES)] = Field(
        {},
        description="LoRA adapters that the engine loads beside the model, by the name under which requests ask for "
        "them, such as `{support: path:/lora/support}`. Each is `path:/dir` on the worker or `hf:org/name`. "
        "A change makes a new revision.",
    )
    routing: Literal["least_load", "session"] = Field(
        "least_load",
        description="Which replica gets a request. `least_load`: the one with the fewest requests in flight. "
        "`session`: requests of the same session go to the same one, while it is below its limit. The header "
        "`x-session-id` names the session, or that of a coding agent.",
    )
    max_in_flight: Annotated[
        Annotated[Whole, Field(ge=1, le=100_000)] | Literal["auto"], BeforeValidator(_number_or_auto)
    ] = Field(
        "auto",
        description="Most requests at one replica; others wait at the gateways. "
        "`auto`: what its engine serves at once, by its flags or its default.",
    )
    queue: Queue = Field(Queue(), description="Requests that wait for a replica.")

    first_token_timeout: _Wait = Field(
        1800.0, description="Longest wait for the first byte of an answer; then the request ends with 504. At most 24h."
    )
    silence_timeout: _Wait = Field(
        300.0, description="Longest silence between two pieces of an answer; then the answer is cut. At most 24h."
    )

    stream_usage: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_or_off)] = Field(
        "auto",
        description="Whether the gateway asks the engine for the token counts of streams (`include_usage`). `auto`: "
        "until a replica refuses that field. Without counts of the engine, tokens are estimated.",
    )

    apps: Apps | None = Field(
        None,
        description="Own paths of the server of a `custom` engine, for programs: `/apps/NAME/...`. Without it they are "
        "not reachable.",
    )

    @field_validator("aliases")
    @classmethod
    def _alias_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for alias in value:
            if not alias or alias != alias.strip() or not alias.isprintable() or len(alias) > _MAX_NAME:
                raise ValueError(
                    f"{alias!r} is not a valid name of a model; write 1 to {_MAX_NAME} printable characters"
                )
        if len(set(value)) < len(value):
            raise ValueError("names an alias twice; remove one of them")
        return value

    @field_validator("adapters")
    @classmethod
    def _adapter_places(cls, value: dict[str, str]) -> dict[str, str]:
        for name, place in value.items():
            if not _ADAPTER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name of an adapter; use letters, digits, '.', '_', '-', '/'")
            if not _ADAPTER_PLACE.fullmatch(place) or ".." in place.split("/"):
                raise ValueError(f"{name}: must be path:/dir or hf:org/name, without '=' and braces, got {place!r}")
        return value

    @model_validator(mode="after")
    def _named_once(self) -> "ServingLimits":
        twice = sorted(self.adapters.keys() & set(self.aliases))
        if twice:
            raise ValueError(f"{twice[0]!r} is an alias and an adapter; remove one of them")
        return self

    @property
    def names(self) -> frozenset[str]:
        """All names beside the deployment's own under which requests may ask for it."""
        return frozenset((*self.aliases, *self.adapters))
