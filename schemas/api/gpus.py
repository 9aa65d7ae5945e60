"""GPUs as the API returns them."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from schemas.base import View
from schemas.wire import GpuDetails


class _DetailsField:
    """Makes a field of a view of the wire's `GpuDetails`."""

    @staticmethod
    def __get_pydantic_core_schema__(_source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: msgspec.convert(value, GpuDetails, strict=False),
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
            ref=GpuDetails.__name__,
        )

    @staticmethod
    def __get_pydantic_json_schema__(_schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        _, parts = msgspec.json.schema_components([GpuDetails])
        whole: dict[str, Any] = parts[GpuDetails.__name__]
        whole["properties"]["foreign"]["anyOf"][0]["items"] = parts["ForeignProcess"]
        return whole


class GpuClaimView(View):
    """A claim on the GPU."""

    instance: str
    deployment: str
    memory_mib: int
    exclusive: bool
    epoch: int


class GpuStatus(View):
    """The status of a GPU.

    Attributes:
        free_mib: the most that one more claim could have: the memory less what is claimed, reserved and foreign.
        reserved_mib: kept back by the operator of the host. An instance that takes the whole GPU takes it too.
        foreign_mib: measured to be in use, but not explained by a claim.
        used_mib: measured; None is unknown.
        utilization: percent; None is unknown.
        parent: the GPU of which it is a MIG slice.
        details: what else is read of it; None: nothing, or not lately.
    """

    worker: str
    index: int
    model: str
    memory_mib: int
    free_mib: int
    claimed_mib: int = 0
    reserved_mib: int = 0
    foreign_mib: int = 0
    health: Literal["ok", "unhealthy", "unknown"]
    health_reason: str = ""
    compute_capability: str | None = None
    mig_mode: bool = False
    present: bool = True
    used_mib: int | None = None
    utilization: float | None = None
    parent: str | None = None
    details: Annotated[GpuDetails, _DetailsField] | None = None
    claims: list[GpuClaimView] = []


class GpuSpecView(View):
    """What an operator wants of a GPU: `cordoned`: nothing new is placed on it."""

    cordoned: bool = False


class GpuView(View):
    """A GPU. Its name is its UUID."""

    kind: Literal["Gpu"] = "Gpu"
    name: str
    uid: str
    generation: int = 1
    created_at: datetime | None = None
    deleted_at: datetime | None = None
    spec: GpuSpecView = GpuSpecView()
    status: GpuStatus
