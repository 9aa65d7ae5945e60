"""From what a user wrote to specs: every refusal names the field and the fix. Shared by command line and API."""

from typing import Any, Final, TypeVar

from pydantic import ValidationError

from gpuward.schemas.manifest import DeploymentManifest, DeploymentSpec
from gpuward.schemas.problems import (
    FieldProblem,
    ManifestError,
    from_validation,
    join_path,
    most_specific,
    nearest,
    unknown_keys,
)
from gpuward.schemas.text import read_documents

__all__ = ["FieldProblem", "Manifest", "ManifestError", "parse_manifest_objects", "parse_manifests", "parse_spec"]

Manifest = DeploymentManifest
Spec = TypeVar("Spec", bound=DeploymentSpec)
MAX_MANIFESTS: Final = 1000
# Accepting a policy that nobody enforces would be a lie.
_NO_POLICIES: Final = "utilization policies are not enforced by this version; remove it"


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
        raise ManifestError([FieldProblem("", "holds no manifest; write one that begins with kind: Deployment")])
    if len(objects) > MAX_MANIFESTS:
        raise ManifestError([FieldProblem("", f"holds {len(objects)} manifests; the limit is {MAX_MANIFESTS}")])
    manifests: list[Manifest] = []
    problems: list[FieldProblem] = []
    first_of: dict[str, int] = {}
    for index, value in enumerate(objects):
        base = join_path("", index) if len(objects) > 1 else ""
        try:
            manifest = _parse_manifest(value, base)
        except ManifestError as error:
            problems.extend(error.problems)
            continue
        if manifest.name in first_of:
            path = join_path(base, "name")
            other = first_of[manifest.name]
            problems.append(FieldProblem(path, f"{manifest.name!r} is taken by manifest [{other}]; rename one"))
        first_of.setdefault(manifest.name, index)
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
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem("", "is no object; send the spec's fields as one JSON object")])
    if name is None:
        return _validate(DeploymentSpec, value, "")
    if value.get("name", name) != name:
        raise ManifestError([FieldProblem("name", f"{str(value['name'])[:80]!r} is not {name!r}, as the path says")])
    return _parse_manifest({"kind": "Deployment", **value, "name": name}, "").spec()


def _parse_manifest(value: object, base: str) -> Manifest:
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem(base, "is no mapping; write a manifest that begins with kind: Deployment")])
    kind = value.get("kind")
    path = join_path(base, "kind")
    if kind is None:
        raise ManifestError([FieldProblem(path, "is missing; write kind: Deployment")])
    if kind == "UtilizationPolicy":
        raise ManifestError([FieldProblem(path, f"UtilizationPolicy: {_NO_POLICIES}")])
    if kind != "Deployment":
        advice = nearest(str(kind), ["Deployment"])
        raise ManifestError([FieldProblem(path, f"{str(kind)[:80]!r} is no known kind; {advice}")])
    return _validate(DeploymentManifest, value, base)


def _validate(model: type[Spec], value: dict[str, Any], base: str) -> Spec:
    problems = list(unknown_keys(model, value, base))
    if value.get("utilization_policy") is not None:
        problems.append(FieldProblem(join_path(base, "utilization_policy"), _NO_POLICIES))
    parsed = None
    try:
        parsed = model.model_validate(value)
    except ValidationError as error:
        problems.extend(from_validation(error, value, base))
    if problems or parsed is None:
        raise ManifestError(most_specific(problems))
    return parsed
