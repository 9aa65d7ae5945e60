"""Manifests of utilization policies: what is accepted, what is refused, and the message."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import parse_manifest_objects, parse_manifests, parse_policy_spec, parse_spec
from schemas.manifest.policy import NO_POLICY, PolicyManifest, PolicySpec, UtilizationPolicy
from schemas.manifest.problems import ManifestError

DEPLOYMENT = {"kind": "Deployment", "name": "a", "model": "hf:a/b"}
POLICY = {"kind": "UtilizationPolicy", "name": "p", "min_gpu_utilization": 50, "time_window": "1m"}


def problems(*objects: object) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        parse_manifest_objects(list(objects))
    return {problem.path: problem.message for problem in caught.value.problems}


def inline(**fields: Any) -> dict[str, Any]:
    return {**DEPLOYMENT, "utilization_policy": {"min_gpu_utilization": 50, "time_window": "1m", **fields}}


def test_the_example_of_the_contract_is_accepted() -> None:
    text = """
kind: UtilizationPolicy
name: stop-idle
default: true
min_gpu_utilization: 50
time_window: 1m
gpus: all
action: stop
grace_period: 0s
min_coverage: 0.8
dry_run: false
ignore_requests: false
webhook: null
"""
    (policy,) = parse_manifests(text)
    assert isinstance(policy, PolicyManifest)
    assert policy.spec() == PolicySpec(min_gpu_utilization=50, time_window=60, default=True)


def test_a_policy_in_the_form_of_dstack_is_accepted() -> None:
    text = (
        "kind: Deployment\nname: a\nmodel: hf:a/b\nutilization_policy:\n  min_gpu_utilization: 50\n  time_window: 1h\n"
    )
    (manifest,) = parse_manifests(text)
    assert isinstance(manifest, DeploymentManifest)
    assert manifest.utilization_policy == UtilizationPolicy(min_gpu_utilization=50, time_window=3600)


# U36
@pytest.mark.parametrize(
    ("written", "seconds"), [("5m", 300), (300, 300), ("1h", 3600), ("30s", 30), ("24h", 86_400), ("1h30m", 5400)]
)
def test_windows_are_seconds(written: object, seconds: int) -> None:
    assert parse_policy_spec({**POLICY, "time_window": written}, name="p").time_window == seconds


# U37
@pytest.mark.parametrize("written", [29, "29s", -1, "off", True, 300.9, "24h1s", 86_401, None, "", [60]])
def test_other_windows_are_refused(written: object) -> None:
    for found, path in (
        (problems({**POLICY, "time_window": written}), "time_window"),
        (problems(inline(time_window=written)), "utilization_policy.time_window"),
    ):
        assert set(found) == {path}
        assert "write 30s to 24h" in found[path]


# U39
@pytest.mark.parametrize("written", [50, "50", 1, 100, "100"])
def test_percentages_are_whole(written: object) -> None:
    assert parse_policy_spec({**POLICY, "min_gpu_utilization": written}, name="p").min_gpu_utilization == int(
        str(written)
    )


@pytest.mark.parametrize("written", [101, -1, 49.5, "5%", "49.5", True, None, "101", "-1"])
def test_other_percentages_are_refused(written: object) -> None:
    for found, path in (
        (problems({**POLICY, "min_gpu_utilization": written}), "min_gpu_utilization"),
        (problems(inline(min_gpu_utilization=written)), "utilization_policy.min_gpu_utilization"),
    ):
        assert set(found) == {path}
        assert "from 1 to 100" in found[path]


# U22
@pytest.mark.parametrize("written", [0, "0"])
def test_a_minimum_of_zero_is_refused(written: object) -> None:
    assert "remove the policy instead" in problems({**POLICY, "min_gpu_utilization": written})["min_gpu_utilization"]


# U40, and the same within a policy
@pytest.mark.parametrize(
    ("written", "path", "nearest"),
    [
        ({**DEPLOYMENT, "utilization_polcy": "p"}, "utilization_polcy", "utilization_policy"),
        (inline(time_windw=1), "utilization_policy.time_windw", "time_window"),
        (inline(webhook={"ur": "http://a"}), "utilization_policy.webhook.ur", "url"),
        ({**POLICY, "min_gpu_utilisation": 5}, "min_gpu_utilisation", "min_gpu_utilization"),
        ({**POLICY, "kind": "UtilisationPolicy"}, "kind", "UtilizationPolicy"),
    ],
)
def test_an_unknown_key_is_refused_with_the_most_similar_one(written: object, path: str, nearest: str) -> None:
    assert f"did you mean {nearest!r}?" in problems(written)[path]


@pytest.mark.parametrize(
    ("fields", "path", "part"),
    [
        ({"action": "kill"}, "action", "'stop', 'scale_down' or 'notify'"),
        ({"gpus": "some"}, "gpus", "'all', 'any' or 'mean'"),
        ({"min_coverage": 0}, "min_coverage", "greater than 0"),
        ({"min_coverage": 1.1}, "min_coverage", "must be at most 1"),
        ({"min_coverage": True}, "min_coverage", "must be a number above 0"),
        ({"grace_period": "soon"}, "grace_period", "is not a valid duration"),
        ({"webhook": "example.com"}, "webhook.url", "write https://host/path"),
        ({"webhook": "https://user:word@example.com"}, "webhook.url", "contains a user name or password"),
        ({"webhook": "https://example.com:99999/"}, "webhook.url", "write https://host/path (Port out of range"),
        ({"webhook": "https://[::1/"}, "webhook.url", "write https://host/path (Invalid IPv6 URL)"),
        ({"webhook": "https://example.com/a b"}, "webhook.url", "without blanks"),
        ({"webhook": "https://example.com\n/a"}, "webhook.url", "without blanks"),
        ({"webhook": 5}, "webhook", "must be a URL, such as https://host/path, or {url: ..., secret: ...}, got 5"),
        (
            {"webhook": {"url": "https://example.com", "secret": "A B"}},
            "webhook.secret",
            "not a valid name of a secret",
        ),
    ],
)
def test_other_fields(fields: dict[str, Any], path: str, part: str) -> None:
    found = problems({**POLICY, **fields})
    assert part in "; ".join(
        message for where, message in found.items() if where in (path, path.split(".", maxsplit=1)[0])
    ), found


# U20
def test_a_policy_on_a_deployment_without_gpus_is_refused() -> None:
    no_gpus = {**inline(), "resources": {"gpus": 0}}
    assert "requires a GPU" in problems(no_gpus)["utilization_policy"]
    parse_manifest_objects([{**no_gpus, "utilization_policy": NO_POLICY}])


def test_the_name_none_is_reserved() -> None:
    assert "choose another name" in problems({**POLICY, "name": "none"})["name"]


def test_names_are_unique_for_each_kind() -> None:
    same = parse_manifest_objects([{**DEPLOYMENT, "name": "x"}, {**POLICY, "name": "x"}])
    assert [(m.kind, m.name) for m in same] == [("Deployment", "x"), ("UtilizationPolicy", "x")]
    assert "also the name of manifest [0]" in problems(POLICY, DEPLOYMENT, POLICY)["[2].name"]


def test_a_reference_is_a_name() -> None:
    spec = parse_spec({"model": "hf:a/b", "utilization_policy": "stop-idle"})
    assert spec.utilization_policy == "stop-idle"
    assert set(problems({**DEPLOYMENT, "utilization_policy": "Stop Idle"})) == {"utilization_policy"}


def test_a_stored_spec_is_read_back_unchanged() -> None:
    spec = parse_policy_spec({**POLICY, "webhook": "https://example.com/hook", "grace_period": "90s"}, name="p")
    assert parse_policy_spec(spec.model_dump(mode="json"), name="p") == spec


def test_a_spec_may_not_contradict_its_path() -> None:
    for wrong, words in (({"name": "q"}, "'q' differs from 'p' in the path"), ({"kind": "Deployment"}, "in the path")):
        with pytest.raises(ManifestError, match=words):
            parse_policy_spec({**POLICY, **wrong}, name="p")
    with pytest.raises(ManifestError, match="one JSON object"):
        parse_policy_spec([POLICY], name="p")


def test_policies_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        PolicySpec(min_gpu_utilization=1, time_window=60).dry_run = True  # type: ignore[misc]
