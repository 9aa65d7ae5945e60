"""Usage of models by key, and the gateways that report it."""

from schemas.api.view import Literal, Moment, View


class UsageFigures(View, frozen=True, kw_only=True):
    """Requests, tokens and seconds.

    Attributes:
        requests: all that were let pass.
        errors: of those, answers with a status of 400 and more, and ones that broke off.
        prompt_tokens: tokens of the requests' prompts.
        cached_tokens: the part of them that engines had in a cache.
        completion_tokens: tokens of the answers.
        estimated: requests whose tokens are estimated, since the engine reported none.
        in_flight_s: seconds in which requests were under way, all together.
        first_token_s: mean time to the first token; None: no request had one.
        refused: by a limit of the key or a full queue, before an engine got them. Those whose model was not known yet
            are in no other figure, and have an empty model.
    """

    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: int
    in_flight_s: float
    first_token_s: float | None = None
    refused: int = 0


class UsageItem(UsageFigures, frozen=True, kw_only=True):
    """The figures of one key, model and endpoint; of those that were not asked for: None."""

    key: str | None = None
    key_name: str | None = None
    model: str | None = None
    endpoint: str | None = None


class UsageReport(View, frozen=True, kw_only=True):
    """`GET /usage`: most tokens first."""

    since: Moment
    until: Moment
    items: list[UsageItem]


class GatewayView(View, frozen=True, kw_only=True):
    """One process of a gateway.

    Attributes:
        name: host and port; with several processes, followed by `/` and the number of the process.
        state: `silent`: it has not reported for 10 s, and what it has is unknown.
        seen_at: its last report.
        in_flight: requests at engines, by its last report.
        waiting: requests that wait there, by its last report.
    """

    name: str
    state: Literal["reporting", "silent"]
    seen_at: Moment
    in_flight: int
    waiting: int
