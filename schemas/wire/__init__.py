"""The messages between agent and controller over one WebSocket: JSON objects distinguished by `type`.

Every message may be repeated, late or lost. A process report has a sequence number that rises over the agent's life;
the newest report counts. Only field names and values are the contract; the split into files is not. Unknown keys are
ignored. A new field is marked `Since` its protocol, and peers of older protocols are not sent it.
"""

from typing import Final, TypeAlias

from msgspec.json import Decoder

from schemas.wire.base import MAX_GPUS, MAX_NAME, MAX_PERIODS, MAX_PROCESSES, MAX_TEXT, Since, Wire, encode, explain
from schemas.wire.commands import (
    ClaimOrder,
    Command,
    CommandResult,
    GenerateOrder,
    ModelFetch,
    ProbeOrder,
    SimulatedLoad,
    StartOrder,
    StopOrder,
)
from schemas.wire.containers import PULLING, RUNTIME_DOCKER, ContainerOrder, ReportedRuntime
from schemas.wire.gpu_details import ForeignProcess, GpuDetails
from schemas.wire.inventory import Health, Inventory, InventoryChanged, ReportedGpu, ReportedHost, Vendor
from schemas.wire.join import (
    CA_PATH,
    CREDENTIAL_FORM,
    CREDENTIAL_HEADER,
    JOIN_PATH,
    JoinRequest,
    JoinResponse,
    is_credential,
    new_credential,
    split_token,
    token_with_authority,
)
from schemas.wire.protocol import (
    HIGHEST_PROTOCOL,
    LOWEST_PROTOCOL,
    SPOKEN,
    UNNAMED,
    Protocols,
    no_common_protocol,
    offered_protocols,
)
from schemas.wire.proxy import (
    HOP_BY_HOP,
    OUR_HEADERS,
    PROXY_CACHE,
    PROXY_ENGINE_PREFIX,
    PROXY_IN_FLIGHT_HEADER,
    PROXY_LOGS_PREFIX,
    PROXY_OUTCOME_HEADER,
    PROXY_REFUSAL_HEADER,
    TIMED_LOG,
    end_to_end,
    is_final,
)
from schemas.wire.reports import GPU_MEMORY_HELD, NO_ANSWER, ExitReason, ProcessReport, ProcessState, ReportAck
from schemas.wire.samples import SAMPLE_S, GpuSample, ProcessSample, Readings, SamplePeriod, Samples, SamplesAck
from schemas.wire.session import HEARTBEAT_S, AttestedTerm, Goodbye, Heartbeat, Hello, NewCredential, Rejected, Welcome

CONNECT_PATH: Final = "/api/v1/agents/connect"  # Authorization: Bearer <credential>
MAX_MESSAGE_BYTES: Final = 8 * 2**20

# `type` in the JSON of a message is the tag of its class.
AgentMessage: TypeAlias = Hello | Heartbeat | InventoryChanged | ProcessReport | Samples | CommandResult | Goodbye
ControllerMessage: TypeAlias = Welcome | Command | ReportAck | SamplesAck | NewCredential | Rejected
agent_message: Final[Decoder[AgentMessage]] = Decoder(AgentMessage)
controller_message: Final[Decoder[ControllerMessage]] = Decoder(ControllerMessage)
