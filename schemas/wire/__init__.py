"""What agent and controller exchange over one WebSocket: JSON objects distinguished by `type`.

Every message may be repeated, late or lost. A process report has a sequence number that rises over the agent's life;
the newest report wins. Only field names and values are the contract; the split into files is not.
"""

from schemas.wire.commands import ClaimOrder, Command, CommandResult, ProbeOrder, SimulatedLoad, StartOrder, StopOrder
from schemas.wire.inventory import DeviceFacts, Health, HostFacts, Inventory, InventoryChanged, Vendor
from schemas.wire.join import JOIN_PATH, JoinRequest, JoinResponse
from schemas.wire.messages import (
    CONNECT_PATH,
    MAX_MESSAGE_BYTES,
    AgentMessage,
    ControllerMessage,
    agent_message,
    controller_message,
)
from schemas.wire.proxy import (
    HOP_BY_HOP,
    PROXY_ENGINE_PREFIX,
    PROXY_LOGS_PREFIX,
    PROXY_OUTCOME_HEADER,
    PROXY_REFUSAL_HEADER,
    end_to_end,
)
from schemas.wire.reports import ExitReason, ProcessReport, ProcessState, ReportAck
from schemas.wire.samples import SAMPLE_S, GpuSample, ProcessSample, Readings, SamplePeriod, Samples, SamplesAck
from schemas.wire.session import HEARTBEAT_S, PROTOCOL, Goodbye, Heartbeat, Hello, Rejected, Welcome

__all__ = [
    "CONNECT_PATH",
    "HEARTBEAT_S",
    "HOP_BY_HOP",
    "JOIN_PATH",
    "MAX_MESSAGE_BYTES",
    "PROTOCOL",
    "PROXY_ENGINE_PREFIX",
    "PROXY_LOGS_PREFIX",
    "PROXY_OUTCOME_HEADER",
    "PROXY_REFUSAL_HEADER",
    "SAMPLE_S",
    "AgentMessage",
    "ClaimOrder",
    "Command",
    "CommandResult",
    "ControllerMessage",
    "DeviceFacts",
    "ExitReason",
    "Goodbye",
    "GpuSample",
    "Health",
    "Heartbeat",
    "Hello",
    "HostFacts",
    "Inventory",
    "InventoryChanged",
    "JoinRequest",
    "JoinResponse",
    "ProbeOrder",
    "ProcessReport",
    "ProcessSample",
    "ProcessState",
    "Readings",
    "Rejected",
    "ReportAck",
    "SamplePeriod",
    "Samples",
    "SamplesAck",
    "SimulatedLoad",
    "StartOrder",
    "StopOrder",
    "Vendor",
    "Welcome",
    "agent_message",
    "controller_message",
    "end_to_end",
]
