"""From what a user wrote to specs: every refusal names the field and the fix. Shared by command line and API."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.manifest.deployment import DeploymentManifest, DeploymentSpec
from schemas.manifest.policy import PolicyManifest, PolicySpec
from schemas.manifest.problems import FieldProblem, ManifestError, from_validation, join_path, most_specific, nearest
from schemas.manifest.strict_yaml import read_documents
from schemas.manifest.unknown_keys import unknown_keys

__all__ = [
    "FieldProblem",
    "Manifest",
    "ManifestError",
    "parse_manifest_objects",
    "parse_manifests",
    "parse_policy_spec",
    "parse_spec",
]

Manifest: TypeAlias = DeploymentManifest | PolicyManifest
M = TypeVar("M", bound=BaseModel)
MAX_MANIFESTS: Final = 1000
_KINDS: Final[Mapping[str, type[Manifest]]] = {"Deployment": DeploymentManifest, "UtilizationPolicy": PolicyManifest}
_BEGIN: Final = f"begins with kind: {' or kind: '.join(_KINDS)}"


def parse_manifests(text: str) -> list[Manifest]:
    """Reads manifests from YAML (several documents) or JSON (an object or a list of them).

    Args:
        text: at most 1 MiB.

    Raises:
        ManifestError: naming every field that is wrong; with several manifests, paths begin with `[index]`.
    """
    objects: list[object] = []
    for document in read_documents(text):
        objects.extend(document if isinstance(document, list) else [document])
    return parse_manifest_objects(objects)


def parse_manifest_objects(objects: list[object]) -> list[Manifest]:
    """As `parse_manifests`, from values that were read already.

    Raises:
        ManifestError: as `parse_manifests`.
    """
    if not objects:
        raise ManifestError([FieldProblem("", f"holds no manifest; write one that {_BEGIN}")])
    if len(objects) > MAX_MANIFESTS:
        raise ManifestError([FieldProblem("", f"holds {len(objects)} manifests; the limit is {MAX_MANIFESTS}")])
    manifests: list[Manifest] = []
    problems: list[FieldProblem] = []
    first_of: dict[tuple[str, str], int] = {}
    for index, value in enumerate(objects):
        base = join_path("", index) if len(objects) > 1 else ""
        try:
            manifest = _parse_manifest(value, base)
        except ManifestError as error:
            problems.extend(error.problems)
            continue
        other = first_of.setdefault((manifest.kind, manifest.name), index)
        if other != index:
            path = join_path(base, "name")
            problems.append(FieldProblem(path, f"{manifest.name!r} is taken by manifest [{other}]; rename one"))
        manifests.append(manifest)
    if problems:
        raise ManifestError(problems)
    return manifests


def parse_spec(value: object, *, name: str | None = None) -> DeploymentSpec:
    """Reads a deployment's spec: everything of its manifest but kind and name.

    Args:
        value: the spec's fields.
        name: of the deployment where it is known; kind and name may stand in `value` then, if they say the same.

    Raises:
        ManifestError: naming every field that is wrong.
    """
    if name is None:
        return _validate(DeploymentSpec, _fields(value), "")
    return _validate(DeploymentManifest, _named(value, "Deployment", name), "").spec()


def parse_policy_spec(value: object, *, name: str) -> PolicySpec:
    """Reads a policy's spec: everything of its manifest but kind and name, which may stand in `value` if they agree.

    Raises:
        ManifestError: naming every field that is wrong.
    """
    return _validate(PolicyManifest, _named(value, "UtilizationPolicy", name), "").spec()


def _fields(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem("", "is no object; send the spec's fields as one JSON object")])
    return value


def _named(value: object, kind: str, name: str) -> dict[str, Any]:
    """A spec as the manifest of an object whose kind and name the path says."""
    fields = _fields(value)
    for field, said in (("kind", kind), ("name", name)):
        if fields.get(field, said) != said:
            message = f"{str(fields[field])[:80]!r} is not {said!r}, as the path says"
            raise ManifestError([FieldProblem(field, message)])
    return {**fields, "kind": kind, "name": name}


def _parse_manifest(value: object, base: str) -> Manifest:
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem(base, f"is no mapping; write a manifest that {_BEGIN}")])
    kind = value.get("kind")
    path = join_path(base, "kind")
    if kind is None:
        raise ManifestError([FieldProblem(path, f"is missing; write kind: {' or kind: '.join(_KINDS)}")])
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise ManifestError([FieldProblem(path, f"{str(kind)[:80]!r} is no known kind; {nearest(str(kind), _KINDS)}")])
    return _validate(model, value, base)


def _validate(model: type[M], value: dict[str, Any], base: str) -> M:
    problems = list(unknown_keys(model, value, base))
    parsed = None
    try:
        parsed = model.model_validate(value)
    except ValidationError as error:
        problems.extend(from_validation(error, value, base))
    if problems or parsed is None:
        raise ManifestError(most_specific(problems))
    return parsed
