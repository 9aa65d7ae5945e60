"""The stream of `GET /watch`."""

from typing import Annotated, Any, Final

import msgspec

from schemas.api.view import Literal, View

_OBJECTS: Final = [
    {"$ref": f"#/components/schemas/{name}"} for name in ("DeploymentView", "InstanceView", "WorkerView", "PolicyView")
]


class WatchEvent(View, frozen=True, kw_only=True):
    """One server-sent event: `snapshot` first, then `changed` or `gone` objects."""

    type: Literal["snapshot", "changed", "gone"]
    object: Annotated[Any, msgspec.Meta(extra_json_schema={"anyOf": [*_OBJECTS, {"type": "object"}]})]
