"""All messages of the WebSocket, by direction."""

from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from schemas.wire.commands import Command, CommandResult
from schemas.wire.inventory import InventoryChanged
from schemas.wire.reports import ProcessReport, ReportAck
from schemas.wire.samples import Samples, SamplesAck
from schemas.wire.session import Goodbye, Heartbeat, Hello, NewCredential, Rejected, Welcome

CONNECT_PATH: Final = "/api/v1/agents/connect"  # Authorization: Bearer <credential>
MAX_MESSAGE_BYTES: Final = 8 * 2**20

AgentMessage = Annotated[
    Hello | Heartbeat | InventoryChanged | ProcessReport | Samples | CommandResult | Goodbye,
    Field(discriminator="type"),
]
ControllerMessage = Annotated[
    Welcome | Command | ReportAck | SamplesAck | NewCredential | Rejected, Field(discriminator="type")
]
agent_message: Final[TypeAdapter[Any]] = TypeAdapter(AgentMessage)
controller_message: Final[TypeAdapter[Any]] = TypeAdapter(ControllerMessage)
