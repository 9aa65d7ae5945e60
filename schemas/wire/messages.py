"""All messages of the WebSocket, by direction. `type` in their JSON is the tag of their class."""

from typing import Final, TypeAlias

from msgspec.json import Decoder

from schemas.wire.commands import Command, CommandResult
from schemas.wire.inventory import InventoryChanged
from schemas.wire.reports import ProcessReport, ReportAck
from schemas.wire.samples import Samples, SamplesAck
from schemas.wire.session import Goodbye, Heartbeat, Hello, NewCredential, Rejected, Welcome

CONNECT_PATH: Final = "/api/v1/agents/connect"  # Authorization: Bearer <credential>
MAX_MESSAGE_BYTES: Final = 8 * 2**20

AgentMessage: TypeAlias = Hello | Heartbeat | InventoryChanged | ProcessReport | Samples | CommandResult | Goodbye
ControllerMessage: TypeAlias = Welcome | Command | ReportAck | SamplesAck | NewCredential | Rejected
agent_message: Final[Decoder[AgentMessage]] = Decoder(AgentMessage)
controller_message: Final[Decoder[ControllerMessage]] = Decoder(ControllerMessage)
