"""Manifests: specs or a refusal that names the field, and the same specs from what is written of them."""

import json
from typing import Any, Final

import yaml

from controller.engines.base import SpecError
from controller.engines.registry import validate
from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import parse_manifest_objects, parse_manifests
from schemas.manifest.policy import PolicyManifest
from schemas.manifest.problems import ManifestError
from schemas.manifest.strict_yaml import read_documents
from support.builders.bounds import bounded
from support.fuzz.refusals import explained


def _fields(model: Any) -> set[str]:
    found = set(model.model_fields)
    for field in model.model_fields.values():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            found |= _fields(kind) if hasattr(kind, "model_fields") else set()
    return found


WORDS: Final = (
    *(f"\n{name}: " for name in sorted(_fields(DeploymentManifest) | _fields(PolicyManifest))),
    "kind: Deployment\n", "kind: UtilizationPolicy\n", "engine: vllm\n", "engine: llama-cpp\n", "engine: custom\n",
    "engine: simulated\n", "model: hf:a/b\n", "model: path:/x\n", "name: x\n", "---\n", "&a ", "*a", "!!int ", "<<: ",
    "? ", "- ", "[", "]", "{", "}", '"', "'", "|\n", ">\n", "0x1", "1e9", ".inf", ".nan", "~", "\\ud800", "\\0",
    "80GiB", "5m", "true", "null", "%", "@", "`", "\t", "\n  ", "\ufeff", "\u2028", "\x85",
)  # fmt: skip


def check(data: bytes) -> None:
    """The text gives manifests that engines accept or refuse, or problems with their fields."""
    text = data.decode(errors="surrogateescape")
    try:
        with bounded():
            manifests = parse_manifests(text)
    except ManifestError as error:
        explained(error)
        return
    with bounded():
        for manifest in manifests:
            _is_judged(manifest)
    written = [json.loads(manifest.model_dump_json(exclude_unset=True)) for manifest in manifests]
    assert parse_manifest_objects(list(written)) == manifests, "it is written otherwise"
    assert parse_manifests(yaml.safe_dump_all(written, allow_unicode=True)) == manifests
    documents = read_documents(text)
    assert read_documents(json.dumps(documents)) == [documents], "JSON and YAML differ"


def _is_judged(manifest: Any) -> None:
    if isinstance(manifest, DeploymentManifest):
        try:
            validate(manifest.spec())
        except SpecError as error:
            explained(error)
