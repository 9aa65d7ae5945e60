"""GPUs as the API returns them."""

from datetime import datetime
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

from schemas.base import View
from schemas.wire import GpuDetails


class _DetailsField:
    """Makes a field of a view of the wire's `GpuDetails`, described as a model of pydantic would be."""

    @staticmethod
    def __get_pydantic_core_schema__(_source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            lambda value, _model: msgspec.convert(value, GpuDetails, strict=False),
            handler.generate_schema(_described(GpuDetails)),
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
        )


def _described(kind: type[msgspec.Struct]) -> type[BaseModel]:
    empty = kind(**{one.name: None for one in msgspec.structs.fields(kind) if one.required})
    fields: dict[str, Any] = {
        one.name: (_of_pydantic(one.type), ... if one.required else getattr(empty, one.name))
        for one in msgspec.structs.fields(kind)
    }
    return create_model(kind.__name__, __doc__=kind.__doc__, **fields)


def _of_pydantic(kind: Any) -> Any:
    """The type with the bounds of msgspec as bounds of pydantic."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = {
            name: found
            for meta in parts[1:]
            for name in ("ge", "le", "max_length")
            if (found := getattr(meta, name, None)) is not None
        }
        return Annotated[_of_pydantic(parts[0]), Field(**bounds)]
    if origin in (UnionType, Union):
        return reduce(or_, map(_of_pydantic, parts))
    if origin is not None:
        return origin[tuple(part if part is ... else _of_pydantic(part) for part in parts)]
    return _described(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else kind


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
