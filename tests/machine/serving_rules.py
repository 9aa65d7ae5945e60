"""The rules of the ledger machine that concern rollouts, and models that sleep and wake."""

from collections.abc import Awaitable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from machine.examples import NAMES, PICKS, ROLLING
from machine.gateway import ask
from machine.world import World


class ServingRules(RuleBasedStateMachine):
    """What users and gateways do."""

    world: World

    def do(self, what: Awaitable[Any]) -> Any:
        raise NotImplementedError

    def apply(self, name: str, fields: dict[str, Any]) -> None:
        raise NotImplementedError

    @rule(name=NAMES, fields=ROLLING)
    def roll(self, name: str, fields: dict[str, Any]) -> None:
        """A spec of which another version may run: its instances are replaced within its bounds."""
        self.apply(name, fields)

    @rule(name=NAMES, verb=st.sampled_from(["pause", "resume", "resume", "undo", "wake", "blame"]))
    def rollout(self, name: str, verb: str) -> None:
        """A user asks for something, or gateways have seen the new revision fail."""
        self.do(self.world.gateway.blames(name) if verb == "blame" else ask(self.world.database, verb, name))

    @rule(name=NAMES, in_flight=st.integers(0, 3), waiting=st.sampled_from([0, 0, 1, 5]))
    def requests(self, name: str, in_flight: int, waiting: int) -> None:
        """Requests come and go; those that wait wake their model."""
        self.do(self.world.gateway.has(name, in_flight=in_flight, waiting=waiting))

    @rule(pick=PICKS)
    def gateway(self, pick: int) -> None:
        """The gateway falls silent, or is heard again."""
        self.world.gateway.silent = pick % 3 == 0
        self.do(self.world.gateway.tell())
