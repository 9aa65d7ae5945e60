"""Replicas as a number or as a range, how they follow requests, and the queue: what is refused, and how it is told."""

import pytest

from controller.domain.spec_changes import change_between
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_manifests
from schemas.manifest.problems import ManifestError

HEAD = "kind: Deployment\nname: a\nengine: simulated\n"


def spec(**fields: object) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"engine": "simulated", **fields})


@pytest.mark.parametrize(
    ("text", "path", "part"),
    [
        ("replicas: two", "replicas", "must be a whole number or {min: 0, max: 4}, got 'two'"),
        ("replicas: -1", "replicas", "must be at least 0"),
        ("replicas: {min: 3, max: 2}", "replicas", "max must be at least min, which is 3, got 2"),
        ("replicas: {min: 1}", "replicas.max", "is required; add it"),
        ("replicas: {max: 2}", "replicas.min", "is required; add it"),
        ("replicas: {min: 0, max: 0}", "replicas.max", "must be at least 1"),
        ("replicas: {min: 1, max: 3, mx: 2}", "replicas.mx", "did you mean 'max'?"),
        ("replicas: {min: 0, max: 2}\nrestart: never", "replicas", "write a number or restart: always"),
        ("scaling: {target: 0}", "scaling.target", "must be greater than 0"),
        ("scaling: {target: fast}", "scaling.target", "must be a number or auto, got 'fast'"),
        ("scaling: {target: true}", "scaling.target", "must be a number or auto"),
        ("scaling: {window: 0s}", "scaling.window", "must be at least 1"),
        ("scaling: {window: 1h}", "scaling.window", "must be at most 600"),
        ("scaling: {idle_after: 100ms}", "scaling.idle_after", "must be at least 1"),
        ("scaling: {down_windo: 3}", "scaling.down_windo", "did you mean 'down_window'?"),
        ("serving: {max_in_flight: 0}", "serving.max_in_flight", "must be at least 1"),
        ("serving: {max_in_flight: many}", "serving.max_in_flight", "must be a whole number or auto, got 'many'"),
        ("serving: {queue: {length: -1}}", "serving.queue.length", "must be at least 0"),
        ("serving: {queue: {wait: 0s}}", "serving.queue.wait", "must be greater than 0"),
        ("serving: {aliases: [b, b]}", "serving.aliases", "names an alias twice"),
        ("serving: {aliases: [' b']}", "serving.aliases", "is not a valid name of a model"),
    ],
)
def test_refusals_name_field_and_fix(text: str, path: str, part: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifests(HEAD + text)
    found = {problem.path: problem.message for problem in refused.value.problems}
    assert path in found, found
    assert part in found[path]


def test_a_command_without_a_port_follows_no_requests() -> None:
    head = "kind: Deployment\nname: a\nreplicas: {min: 0, max: 2}\n"
    with pytest.raises(ManifestError, match="which no request reaches"):
        parse_manifests(head + "command: [sleep, '9']")
    assert parse_manifests(head + "command: [serve, '{port}']")


def test_replicas_are_stored_and_returned_as_written() -> None:
    assert spec(replicas=2).model_dump(mode="json")["replicas"] == 2
    assert spec(replicas={"min": 2, "max": 2}).model_dump(mode="json")["replicas"] == {"min": 2, "max": 2}
    assert spec().scaling.model_dump(mode="json") == {
        "target": "auto", "window": 10, "down_window": 300, "idle_after": 900, "dry_run": False,
    }  # fmt: skip


def test_a_number_equals_a_range_of_one_in_comparisons() -> None:
    assert change_between(spec(replicas=2), spec(replicas={"min": 2, "max": 2})) == "unchanged"
    assert change_between(spec(replicas=2), spec(replicas={"min": 1, "max": 2})) == "updated"


@pytest.mark.parametrize(
    "change",
    [{"scaling": {"target": 3}}, {"serving": {"aliases": ["b"]}}, {"serving": {"queue": {"length": 0}}}],
)
def test_scaling_and_serving_change_in_place(change: dict[str, object]) -> None:
    assert change_between(spec(), spec(**change)) == "updated"
