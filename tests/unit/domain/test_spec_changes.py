"""Changes of specs by field: the same judgement as of the whole, whatever changes."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller.domain.spec_changes import change_between, field_changes
from schemas.api.plan import FieldChange
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_spec
from schemas.manifest.problems import ManifestError


def spec(**fields: Any) -> DeploymentSpec:
    return parse_spec({"engine": "simulated", **fields}, name="x")


def lines(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any, str]]:
    return [(one.field, one.old, one.new, one.effect) for one in field_changes(spec(**old), spec(**new))]


SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
CASES: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, Any, Any, str]]]] = [
    ({}, {}, []),
    ({"resources": SMALL}, {"resources": {**SMALL, "gpu_memory": "24GiB"}},
     [("resources.gpu_memory", "20GiB", "24GiB", "replaces")]),
    ({"resources": SMALL}, {"resources": {**SMALL, "gpu_memory": "1500MiB"}},
     [("resources.gpu_memory", "20GiB", "1500MiB", "replaces")]),
    ({}, {"priority": 200}, [("priority", 100, 200, "in_place")]),
    ({"replicas": 2}, {"replicas": {"min": 2, "max": 2}}, []),
    ({"replicas": 2}, {"replicas": 3}, [("replicas", 2, 3, "in_place")]),
    ({"env": {"A": "1", "B": "2"}}, {"env": {"B": "3", "C": "4"}},
     [("env.A", "1", None, "replaces"), ("env.B", "2", "3", "replaces"), ("env.C", None, "4", "replaces")]),
    ({"labels": {"app": "x"}}, {}, [("labels.app", "x", None, "in_place")]),
    ({}, {"serving": {"routing": "session"}}, [("serving.routing", "least_load", "session", "in_place")]),
    ({"placement": {"workers": ["a"]}}, {"placement": {"workers": ["a", "b"]}},
     [("placement.workers", ["a"], ["a", "b"], "replaces")]),
    ({}, {"env": {"T": {"secret": "hf"}}}, [("env.T", None, {"secret": "hf"}, "replaces")]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_changes(old: dict[str, Any], new: dict[str, Any], expected: list[tuple[str, Any, Any, str]]) -> None:
    assert lines(old, new) == expected


SIZES = st.sampled_from(["1GiB", "1024MiB", "2GiB"])
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 3),
        "replicas": st.integers(0, 2) | st.just({"min": 1, "max": 2}) | st.just({"min": 2, "max": 2}),
        "labels": st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")),
        "env": st.dictionaries(st.sampled_from("AB"), st.sampled_from(["1", "2"]) | st.just({"secret": "hf"})),
        "resources": st.fixed_dictionaries(
            {"gpus": st.just(1), "gpu_memory": st.sampled_from(["1GiB", "1024MiB", "2GiB"])}
        ),
        "preempt": st.booleans(),
        "serving": st.fixed_dictionaries(
            {}, optional={"aliases": st.lists(st.sampled_from("pq"), unique=True, max_size=2)}
        ),
        "restart": st.sampled_from(["always", "never"]),
    },
)


@given(FIELDS, FIELDS)
def test_the_fields_say_what_the_whole_says(old: dict[str, Any], new: dict[str, Any]) -> None:
    try:
        before, after = spec(**old), spec(**new)
    except ManifestError:
        assume(False)
    changes: list[FieldChange] = field_changes(before, after)
    whole = change_between(before, after)
    effects = {change.effect for change in changes}
    assert whole == ("replaced" if "replaces" in effects else "updated" if effects else "unchanged")
    assert all(change.old != change.new for change in changes)
    assert len({change.field for change in changes}) == len(changes)
    back = [(change.field, change.new, change.old, change.effect) for change in field_changes(after, before)]
    assert sorted(map(str, back)) == sorted(str((c.field, c.old, c.new, c.effect)) for c in changes)
