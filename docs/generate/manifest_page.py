"""docs/manifest.md: every field of a manifest and of the file of simulated hosts, from the pydantic models."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, TypeAdapter

from fields import default_of, described, limits_of, type_of
from schemas.manifest.deployment import DeploymentManifest, SecretRef
from schemas.manifest.docker import DockerOptions
from schemas.manifest.policy import PolicyManifest, UtilizationPolicy, Webhook
from schemas.manifest.probe import Probe
from schemas.manifest.resources import Parallel, Placement, ReplicaRange, Resources, Scaling
from schemas.manifest.rollout import Abort, Canary, Rollout
from schemas.manifest.serving import Apps, Queue, ServingLimits
from schemas.simulated import SimulatedGpu, SimulatedHosts, SimulatedReserve, SimulatedWorker
from tables import code, one_line, sentence, table

HEAD: Final = """\
# Manifest fields

<!-- Written by `make reference` from schemas/manifest/ and schemas/simulated.py. Do not edit. -->

This page lists every field that Gpuward reads from a manifest. [Manifests](manifests.md) explains how to use them.

A file holds one or more documents, YAML or JSON. In YAML, `---` separates them. An unknown key is refused, and the
message names the nearest known one.

A **size** is a number with a unit: KiB, MiB, GiB, TiB, KB, MB, GB or TB. A **duration** is a number of seconds, or a
text with units: ms, s, m, h or d. A **text**, and a key, holds at most 4096 characters.
"""
# In the order of the page: heading, model, what the heading stands for.
SECTIONS: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("Deployment", DeploymentManifest),
    ("SecretRef", SecretRef),
    ("Probe", Probe),
    ("DockerOptions", DockerOptions),
    ("Resources", Resources),
    ("Parallel", Parallel),
    ("Placement", Placement),
    ("ReplicaRange", ReplicaRange),
    ("Scaling", Scaling),
    ("Rollout", Rollout),
    ("Canary", Canary),
    ("Abort", Abort),
    ("ServingLimits", ServingLimits),
    ("Queue", Queue),
    ("Apps", Apps),
    ("UtilizationPolicy object", PolicyManifest),
    ("UtilizationPolicy", UtilizationPolicy),
    ("Webhook", Webhook),
    ("Simulated hosts", SimulatedHosts),
    ("SimulatedWorker", SimulatedWorker),
    ("SimulatedGpu", SimulatedGpu),
    ("SimulatedReserve", SimulatedReserve),
)
_TITLES: Final = ("field", "type", "default", "limits", "meaning")
# What stands above a table instead of the first paragraph of the model's docstring.
_INTRO: Final = {
    "Deployment": "`kind: Deployment`: a model or a command that Gpuward keeps running.",
    "UtilizationPolicy object": "`kind: UtilizationPolicy`: a policy with a name, which deployments refer to."
    " Its other fields are those of an inline policy.",
    "UtilizationPolicy": "A policy inline in a deployment: `utilization_policy: {...}`.",
    "Simulated hosts": "The file that `--simulate FILE` reads.",
}


def page() -> str:
    """The whole page."""
    anchors = {model.__name__: heading.lower().replace(" ", "-") for heading, model in SECTIONS}
    lines = [HEAD]
    for heading, model in SECTIONS:
        intro = _INTRO.get(heading) or sentence((model.__doc__ or "").partition("\n\n")[0])
        lines += [f"## {heading}", "", one_line(intro), "", *table(_TITLES, _rows(model, anchors))]
    return "\n".join(lines).rstrip() + "\n"


def _rows(model: type[BaseModel], anchors: Mapping[str, str]) -> list[list[str]]:
    texts = described(model)
    shown = [name for name in _ordered(model) if not _is_inherited_policy(model, name)]
    rows = []
    for name in shown:
        field = model.model_fields[name]
        schema = _schema(field)
        rows.append([code(name), type_of(schema, anchors), default_of(field, schema), limits_of(schema), texts[name]])
    return rows


def _schema(field: Any) -> dict[str, Any]:
    """The field's JSON schema without its own description, which would hide that of its type."""
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {"$ref": f"#/{annotation.__name__}"}
    for metadata in field.metadata:
        annotation = Annotated[annotation, metadata]
    return TypeAdapter(annotation).json_schema(ref_template="#/{model}")


def _ordered(model: type[BaseModel]) -> list[str]:
    """The fields as declared, kind and name first."""
    first = [name for name in ("kind", "name") if name in model.model_fields]
    return first + [name for name in model.model_fields if name not in first]


def _is_inherited_policy(model: type[BaseModel], name: str) -> bool:
    return model is PolicyManifest and name in UtilizationPolicy.model_fields
