"""Parses manifests into specs, for the command line and the API. Every refusal names the field and the fix."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.manifest.deployment import DeploymentManifest, DeploymentSpec
from schemas.manifest.policy import PolicyManifest, PolicySpec
from schemas.manifest.problems import (
    MOST_PROBLEMS,
    FieldProblem,
    ManifestError,
    from_validation,
    join_path,
    most_specific,
    nearest,
    unknown_keys,
)
from schemas.manifest.strict_yaml import read_documents
from schemas.redaction_mark import MARK

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
_SHOWN: Final = f"contains {MARK}, which answers show in place of a secret's value"
_BEGIN: Final = f"begins with kind: {' or kind: '.join(_KINDS)}"


def parse_manifests(text: str) -> list[Manifest]:
    """Parses manifests from YAML (several documents) or JSON (an object or a list of them), at most 1 MiB.

    Raises:
        ManifestError: names every invalid field. With several manifests, paths start with `[index]`.
    """
    objects: list[object] = []
    for document in read_documents(text):
        objects.extend(document if isinstance(document, list) else [document])
    return parse_manifest_objects(objects)


def parse_manifest_objects(objects: list[object]) -> list[Manifest]:
    """Like `parse_manifests`, from parsed values.

    Raises:
        ManifestError: as `parse_manifests`.
    """
    if not objects:
        raise ManifestError([FieldProblem("", f"contains no manifest; write one that {_BEGIN}")])
    if len(objects) > MAX_MANIFESTS:
        raise ManifestError(
            [FieldProblem("", f"contains {len(objects)} manifests; the limit is {MAX_MANIFESTS}: split it")]
        )
    manifests: list[Manifest] = []
    problems: list[FieldProblem] = []
    first_of: dict[tuple[str, str], int] = {}
    for index, value in enumerate(objects):
        if len(problems) > MOST_PROBLEMS:
            break
        base = join_path("", index) if len(objects) > 1 else ""
        try:
            manifest = _parse_manifest(value, base)
        except ManifestError as error:
            problems.extend(error.problems)
            continue
        other = first_of.setdefault((manifest.kind, manifest.name), index)
        if other != index:
            path = join_path(base, "name")
            problems.append(FieldProblem(path, f"{manifest.name!r} is also the name of manifest [{other}]; rename one"))
        manifests.append(manifest)
    if problems:
        raise ManifestError(problems)
    return manifests


def parse_spec(value: object, *, name: str | None = None) -> DeploymentSpec:
    """Parses the spec of a deployment: every field of its manifest except kind and name.

    `name`: of the deployment, if known. Then `value` may repeat kind and name, but not contradict them.

    Raises:
        ManifestError: names every invalid field.
    """
    if name is None:
        return _validate(DeploymentSpec, _fields(value), "")
    return _validate(DeploymentManifest, _named(value, "Deployment", name), "").spec()


def parse_policy_spec(value: object, *, name: str) -> PolicySpec:
    """Parses the spec of a policy. `value` may repeat kind and name, but not contradict them.

    Raises:
        ManifestError: names every invalid field.
    """
    return _validate(PolicyManifest, _named(value, "UtilizationPolicy", name), "").spec()


def _fields(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem("", "must be one JSON object; send the fields of the spec")])
    return value


def _named(value: object, kind: str, name: str) -> dict[str, Any]:
    """The manifest of an object whose kind and name are in the request's path."""
    fields = _fields(value)
    for field, in_path in (("kind", kind), ("name", name)):
        if fields.get(field, in_path) != in_path:
            message = f"{str(fields[field])[:80]!r} differs from {in_path!r} in the path; make them equal"
            raise ManifestError([FieldProblem(field, message)])
    return {**fields, "kind": kind, "name": name}


def _parse_manifest(value: object, base: str) -> Manifest:
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem(base, f"must be a mapping; write a manifest that {_BEGIN}")])
    kind = value.get("kind")
    path = join_path(base, "kind")
    if kind is None:
        raise ManifestError([FieldProblem(path, f"is required; write kind: {' or kind: '.join(_KINDS)}")])
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise ManifestError([FieldProblem(path, f"unknown kind {str(kind)[:80]!r}; {nearest(str(kind), _KINDS)}")])
    return _validate(model, value, base)


def _validate(model: type[M], value: dict[str, Any], base: str) -> M:
    problems = list(islice(unknown_keys(model, value, base), MOST_PROBLEMS + 1))
    parsed = None
    try:
        parsed = model.model_validate(value)
    except ValidationError as error:
        problems.extend(from_validation(error, value, base))
    if parsed is not None:  # so its depth has a bound
        problems.extend(problems_of_marks(value, base))
    if problems or parsed is None:
        raise ManifestError(most_specific(problems))
    return parsed


def problems_of_marks(manifest: dict[str, Any], base: str) -> Iterator[FieldProblem]:
    """A problem for each field that holds the mark of a secret's value. Paths start with `base`.

    Otherwise an apply of a manifest that was read from the API would replace the value by the mark.
    """
    for field, value in manifest.items():
        path = join_path(base, field)
        if field == "env" and isinstance(value, dict):
            for variable, text in value.items():
                if any(True for _ in _marked(text, "")):
                    yield FieldProblem(join_path(path, variable), f"{_SHOWN}; name the secret: {{secret: NAME}}")
            continue
        for marked in _marked(value, path):
            yield FieldProblem(marked, f"{_SHOWN}; write the value that it stands for")


def _marked(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if MARK in value:
            yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _marked(inner, join_path(path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _marked(item, join_path(path, index))
