"""Gateways as the API returns them."""

from schemas.api.view import Literal, Moment, View


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
