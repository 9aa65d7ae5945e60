"""The fields of the stored spec of a deployment, as dotted paths; `*` is each item of a list or mapping."""

from collections.abc import Iterator, Mapping
from typing import Any

from schemas.manifest.deployment import DeploymentSpec


def manifest_fields() -> set[str]:
    schema = DeploymentSpec.model_json_schema()
    return set(_fields(schema, schema["$defs"], ""))


def _fields(node: Mapping[str, Any], models: Mapping[str, Any], path: str) -> Iterator[str]:
    if "$ref" in node:
        node = models[node["$ref"].rpartition("/")[2]]
    for choice in (*node.get("anyOf", ()), *node.get("allOf", ())):
        yield from _fields(choice, models, path)
    for name, field in node.get("properties", {}).items():
        yield path + name
        yield from _fields(field, models, f"{path}{name}.")
    for items in (node.get("items"), node.get("additionalProperties")):
        if isinstance(items, dict):
            yield from _fields(items, models, f"{path}*.")


if __name__ == "__main__":
    print(*sorted(manifest_fields()), sep="\n")  # noqa: T201 - its output is recorded
