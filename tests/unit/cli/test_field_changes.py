"""Field changes as text, and the verb `diff`."""

import json

import pytest

from cli.text.field_changes import change_line, change_lines
from schemas.api.plan import FieldChange, PlanView


def test_lines() -> None:
    changes = [
        FieldChange(field="resources.gpu_memory", old="20GiB", new="24GiB", effect="replaces"),
        FieldChange(field="priority", old=100, new=200, effect="in_place"),
        FieldChange(field="env.A", old=None, new="", effect="replaces"),
        FieldChange(field="placement.workers", old=["a"], new=[], effect="replaces"),
    ]
    view = PlanView(items=[], field_changes={"chat": changes}, replaces={"chat": 2})
    assert change_lines(view, "chat") == [
        "  resources.gpu_memory: 20GiB -> 24GiB (replaces 2 instances)",
        "  priority: 100 -> 200 (in place)",
        '  env.A: (not set) -> "" (replaces 2 instances)',
        '  placement.workers: ["a"] -> [] (replaces 2 instances)',
    ]
    assert change_lines(view, "other") == []


MANIFEST = "kind: Deployment\nname: chat\nengine: simulated\n"
CHANGE = {"field": "priority", "old": 100, "new": 200, "effect": "in_place"}


def test_diff_says_nothing_where_nothing_differs(gpuward, api):
    api.canned["plan"] = {"items": [], "changes": {"chat": "unchanged"}}
    result = gpuward("diff", "-f", "-", stdin=MANIFEST)
    assert (result.exit_code, result.stdout) == (0, "")


def test_diff_exits_with_1_where_something_differs(gpuward, api):
    api.canned["plan"] = {"items": [], "changes": {"chat": "update"}, "field_changes": {"chat": [CHANGE]}}
    result = gpuward("diff", "-f", "-", stdin=MANIFEST)
    assert (result.exit_code, result.stdout) == (1, "deployment/chat: update\n  priority: 100 -> 200 (in place)\n")
    result = gpuward("diff", "-f", "-", "-o", "json", stdin=MANIFEST)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["field_changes"] == {"chat": [CHANGE]}


@pytest.mark.parametrize("manifest", ["kind: Deployment\nname: chat\nengin: x\n", "a: [", ""])
def test_diff_exits_with_2_or_more_on_errors(gpuward, manifest):
    result = gpuward("diff", "-f", "-", stdin=manifest)
    assert result.exit_code >= 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("20GiB", "20GiB"),
        ("hf:a/b@main", "hf:a/b@main"),
        ("null", '"null"'),
        ("100", '"100"'),
        ("true", '"true"'),
        ("(not set)", '"(not set)"'),
        ("a -> b (in place)", '"a -> b (in place)"'),
        ("a\n  priority: 1 -> 2 (in place)", '"a\\n  priority: 1 -> 2 (in place)"'),
        ("a\x1b[2J", '"a\\u001b[2J"'),
        ("a\u202eb", '"a\\u202eb"'),
        ('"x"', '"\\"x\\""'),
        ([" a\n"], '[" a\\n"]'),
    ],
)
def test_no_value_reads_as_another_one_or_forges_a_line(value, shown) -> None:
    change = FieldChange(field="env.A", old=None, new=value, effect="in_place")
    assert change_line(change) == f"  env.A: (not set) -> {shown} (in place)"
