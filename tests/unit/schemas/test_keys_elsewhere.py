"""A key in the wrong section of a manifest: the problem names the section that has it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import ManifestError, parse_manifest_objects
from schemas.manifest.policy import PolicyManifest

MINIMAL: Mapping[str, dict[str, Any]] = {
    "Deployment": {"kind": "Deployment", "name": "chat", "engine": "simulated"},
    "UtilizationPolicy": {
        "kind": "UtilizationPolicy", "name": "idle", "min_gpu_utilization": 10, "time_window": "1m",
    },
}  # fmt: skip


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif getattr(annotation, "__origin__", None) not in (dict, list, tuple):
        for inner in get_args(annotation):
            yield from models_of(inner)


def sections_of(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    yield path, set(model.model_fields)
    for key, field in model.model_fields.items():
        for inner in models_of(field.annotation):
            yield from sections_of(inner, (*path, key))


def misplaced() -> Iterator[Any]:
    for kind, model in (("Deployment", DeploymentManifest), ("UtilizationPolicy", PolicyManifest)):
        places = defaultdict(set)
        sections = defaultdict(set)
        for path, keys in sections_of(model):
            sections[path] |= keys
            for key in sorted(keys):  # a set's order differs between processes
                places[key].add((*path, key))
        for path, keys in sections.items():
            for key, known in places.items():
                if key not in keys and len(known) == 1:
                    (home,) = known
                    yield pytest.param(kind, path, key, ".".join(home), id=f"{kind}:{'.'.join((*path, key))}")


CASES = list(misplaced())


def test_there_are_many_such_keys() -> None:
    assert len(CASES) > 500


@pytest.mark.parametrize(("kind", "section", "key", "home"), CASES)
def test_a_key_of_exactly_one_other_section_is_suggested_with_its_path(
    kind: str, section: tuple[str, ...], key: str, home: str
) -> None:
    inner: Any = {key: 1}
    for step in reversed(section):
        inner = {step: inner}
    with pytest.raises(ManifestError) as refused:
        parse_manifest_objects([{**MINIMAL[kind], **inner}])
    written = ".".join((*section, key))
    (problem,) = [problem for problem in refused.value.problems if problem.path == written]
    assert f"did you mean {home!r}" in problem.message


def test_a_key_of_several_sections_is_suggested_with_each() -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest_objects([{**MINIMAL["Deployment"], "gpus": 2}])
    assert "'resources.gpus'" in str(refused.value)
    assert "'placement.gpus'" in str(refused.value)


def test_a_misspelt_key_is_still_corrected_in_its_section() -> None:
    with pytest.raises(ManifestError, match=r"resources\.gpu_model: unknown key; did you mean 'gpu_models'"):
        parse_manifest_objects([{**MINIMAL["Deployment"], "resources": {"gpu_model": ["H100"]}}])
