"""The buckets: each instance is in exactly one of them."""

from dataclasses import replace

import pytest

from controller.decide.instances.replicas import Buckets, classify
from controller.domain.instances import InstanceState, StoredRelocation
from support.builders.facts import deployment, host, instance, process, spec
from support.decisions import LOST, elsewhere, running

UNREACHABLE = instance("a", "unreachable", processes=(process("running"),))


def buckets_of(buckets: Buckets) -> dict[str, str]:
    """By instance, the bucket that holds it; an instance in two buckets fails."""
    found: dict[str, str] = {}
    for name in ("stopping", "replaced", "replacements", "given_up", "replicas"):
        for one in getattr(buckets, name):
            assert found.setdefault(one.id, name) == name
    for eviction in buckets.evicted:
        assert found.setdefault(eviction.instance.id, eviction.reason) == eviction.reason
    return found


@pytest.mark.parametrize(
    ("one", "fields", "bucket"),
    [
        (instance("a", "pending"), {}, "replicas"),
        (running("a"), {}, "replicas"),
        (running("a"), {"revision": 2}, "replicas"),
        (instance("a", "failed"), {}, "replicas"),
        (instance("a", "stopping"), {}, "stopping"),
        (instance("a", "replaced"), {"hosts": LOST}, "replaced"),
        (running("a"), {"hosts": (host(draining=True),)}, "drained"),
        (running("a", preempted_for="b"), {}, "preempted"),
        (UNREACHABLE, {"hosts": LOST}, "given_up"),
        (UNREACHABLE, {"hosts": (host(phase="unreachable"),)}, "replicas"),
        (UNREACHABLE, {"hosts": LOST, "spec": spec(restart="never")}, "replicas"),
        (instance("a", "succeeded"), {"hosts": (host(draining=True),)}, "replicas"),
    ],
)
def test_an_instance_has_one_bucket(one: InstanceState, fields: dict, bucket: str) -> None:
    assert buckets_of(classify(deployment(one, **fields))) == {"a": bucket}


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("starting", {"old": "replicas", "new": "replacements"}),
        ("running", {"old": "relocated", "new": "replicas"}),
        ("backoff", {"old": "replicas", "new": "relocation_abandoned"}),
    ],
)
def test_a_replacement_counts_once_its_relocation_is_over(phase: str, expected: dict[str, str]) -> None:
    new = replace(elsewhere("new"), phase=instance("new", phase).phase)
    relocation = StoredRelocation(1, "old", 1, "w2", replacement="new")
    facts = deployment(running("old"), new, relocations=(relocation,), hosts=(host(), host("w2")))
    assert buckets_of(classify(facts)) == expected


def test_a_preempted_instance_is_requeued_until_it_has_a_successor() -> None:
    victim = instance("a", "stopping", preempted_for="b")
    assert [i.id for i in classify(deployment(victim)).requeued] == ["a"]
    successor = instance("c", "pending", replaces="a")
    assert classify(deployment(victim, successor)).requeued == ()
    finished = instance("a", "succeeded", preempted_for="b")
    assert classify(deployment(finished)).requeued == ()
