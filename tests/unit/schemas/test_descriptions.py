"""Every field of a manifest is described; the reference page is made from these descriptions."""

import re

import pytest
from pydantic import BaseModel

from schemas.manifest.deployment import DeploymentManifest, SecretRef
from schemas.manifest.docker import DockerOptions
from schemas.manifest.policy import PolicyManifest, Webhook
from schemas.manifest.probe import Probe
from schemas.manifest.resources import Parallel, Placement, ReplicaRange, Resources, Scaling
from schemas.manifest.rollout import Abort, Canary, Rollout
from schemas.manifest.serving import Apps, Queue, ServingLimits

MODELS = (
    *(
        DeploymentManifest,
        SecretRef,
        Probe,
        DockerOptions,
        Resources,
        Parallel,
        Placement,
        ReplicaRange,
        Scaling,
        ServingLimits,
    ),
    *(Rollout, Canary, Abort, Queue, Apps, PolicyManifest, Webhook),
)
FIELDS = [(model, name) for model in MODELS for name in model.model_fields]


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_every_field_is_described_in_short_sentences(model: type[BaseModel], name: str) -> None:
    text = model.model_json_schema()["properties"][name].get("description", "")
    assert re.fullmatch(r"[A-Z`].*[^.]\.", text), f"{model.__name__}.{name}: {text!r}"
    for sentence in re.split(r"(?<=\.) ", text):
        assert len(sentence.split()) <= 25, sentence


def test_no_model_of_the_manifests_is_left_out() -> None:
    nested = set(DeploymentManifest.model_json_schema()["$defs"]) | set(PolicyManifest.model_json_schema()["$defs"])
    assert nested - {model.__name__ for model in MODELS} == {"UtilizationPolicy"}  # its fields are in PolicyManifest
