"""The protocols of agent and controller, and the choice of the common protocol.

The agent offers each as a WebSocket subprotocol, the highest first; the controller takes the highest that it supports.
The hello then names the protocol of the connection. Agents and controllers before 0.2 use no subprotocol: they use
protocol 3, refuse unknown keys, and are not sent later fields (`Since`). The join precedes the connection, so both of
its messages are of the lowest protocol.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LOWEST_PROTOCOL: Final = 3
# 4: readers ignore unknown keys; 5: new credentials. It rises when an older peer could misunderstand a message.
HIGHEST_PROTOCOL: Final = 5
_UNNAMED: Final = 3  # of peers that name no protocol
_NAME: Final = re.compile(r"gpuward\.v(\d{1,4})")
_MAX_OFFERED: Final = 64


@dataclass(frozen=True, slots=True)
class Protocols:
    """The range of protocols that one side supports."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest}" if self.lowest == self.highest else f"{self.lowest} to {self.highest}"

    def __contains__(self, protocol: int) -> bool:
        return self.lowest <= protocol <= self.highest

    def names(self) -> tuple[str, ...]:
        """The subprotocols to offer, the highest first."""
        return tuple(f"gpuward.v{number}" for number in range(self.highest, self.lowest - 1, -1))

    def common(self, other: "Protocols") -> int | None:
        """The highest common protocol; None if there is none."""
        highest = min(self.highest, other.highest)
        return highest if highest >= max(self.lowest, other.lowest) else None


SPOKEN: Final = Protocols(LOWEST_PROTOCOL, HIGHEST_PROTOCOL)
UNNAMED: Final = Protocols(_UNNAMED, _UNNAMED)


def offered_protocols(names: Iterable[str]) -> Protocols:
    """A peer's offer; `UNNAMED` if it offers no known name."""
    numbers = [int(match[1]) for name in list(names)[:_MAX_OFFERED] if (match := _NAME.fullmatch(name.strip()))]
    return Protocols(min(numbers), max(numbers)) if numbers else UNNAMED


def no_common_protocol(agent: Protocols, controller: Protocols) -> str:
    """The refusal, for both sides."""
    older = "agent" if agent.highest < controller.lowest else "controller"
    return (
        f"no common protocol: the agent speaks {agent}, the controller speaks {controller}; "
        f"install a newer gpuward for the {older}"
    )
