"""What a change of a deployment's spec is, field by field, and what it does to running instances."""

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from schemas.api.plan import FieldChange
from schemas.manifest.deployment import IN_PLACE_FIELDS, DeploymentSpec

Change = Literal["unchanged", "updated", "replaced"]
_ADAPTERS: Final = "serving.adapters"  # engines get them as flags
_GIB: Final = 1024
_MIB: Final = re.compile(r"(\d+)MiB")


def contents_of(spec: DeploymentSpec) -> dict[str, Any]:
    """A spec by top-level field, as JSON. Adapters are apart from `serving`: only they change processes."""
    content = spec.model_dump(mode="json")
    content["serving"] = dict(content["serving"])
    content[_ADAPTERS] = content["serving"].pop("adapters")
    return content


def processes_of(spec: DeploymentSpec) -> dict[str, Any]:
    """The fields of a spec on which its processes depend: without those that change in place."""
    return {field: value for field, value in contents_of(spec).items() if field not in IN_PLACE_FIELDS}


def change_between(old: DeploymentSpec, new: DeploymentSpec) -> Change:
    """What a change from `old` to `new` does to the instances."""
    changed = _changed(old, new)
    if not changed:
        return "unchanged"
    return "updated" if changed.keys() <= IN_PLACE_FIELDS else "replaced"


def field_changes(old: DeploymentSpec, new: DeploymentSpec) -> list[FieldChange]:
    """Each field that differs, by its path in manifests, in their order. What a spec leaves out has its default."""
    changes: list[FieldChange] = []
    for field, (before, after) in _changed(old, new).items():
        effect: Literal["in_place", "replaces"] = "in_place" if field in IN_PLACE_FIELDS else "replaces"
        changes += [
            FieldChange(field=path, old=_written(was), new=_written(will), effect=effect)
            for path, was, will in _leaves(field, before, after)
        ]
    return changes


def _changed(old: DeploymentSpec, new: DeploymentSpec) -> dict[str, tuple[Any, Any]]:
    before, after = contents_of(old), contents_of(new)
    changed = {field: (before[field], after[field]) for field in after if before[field] != after[field]}
    if old.replica_bounds == new.replica_bounds:  # 2 is {min: 2, max: 2}
        changed.pop("replicas", None)
    return changed


def _leaves(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """The paths at which two values differ. A list is one value: a new entry in its middle would move all others."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if old.get(key) != new.get(key) or (key in old) != (key in new):
                yield from _leaves(f"{path}.{key}", old.get(key), new.get(key))
    else:
        yield path, old, new


def _written(value: Any) -> Any:
    """A value as one would write it: 20480MiB is 20GiB."""
    sized = _MIB.fullmatch(value) if isinstance(value, str) else None
    if sized is None or int(sized[1]) % _GIB:
        return value
    return f"{int(sized[1]) // _GIB}GiB"
