"""A manifest at the limit of a body's size is judged in a moment, and its refusal stays readable."""

import time
from typing import Any

import pytest

from schemas.manifest.parse import parse_manifest_objects, parse_spec
from schemas.manifest.problems import MOST_PROBLEMS, ManifestError

WITHIN_S = 5.0  # of this process; what was mended took minutes to hours, the slowest of these takes one
BODIES: dict[str, dict[str, Any]] = {
    "unknown-keys": {f"x{n}": 1 for n in range(80_000)},
    "a-key-of-dots": {"." * 1_000_000: 1},
    "keys-of-dots": {f"{n}{'.' * 10_000}": 1 for n in range(100)},
    "a-long-command": {"command": [1] * 300_000},
    "many-gpus": {"placement": {"gpus": [1] * 300_000}},
    "a-long-size": {"resources": {"gpu_memory": "9" * 1_000_000}},
    "a-long-duration": {"start_timeout": "9" * 1_000_000},
    "a-long-capability": {"resources": {"compute_capability": ">=" * 400_000}},
    "much-env": {"env": {f"k{n}": [1] * 100 for n in range(512)}},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_large_body_is_refused_in_a_moment(body: dict[str, Any]) -> None:
    began = time.process_time()
    with pytest.raises(ManifestError) as refused:
        parse_spec({"engine": "simulated", **body}, name="a")
    assert time.process_time() - began < WITHIN_S
    assert 1 <= len(refused.value.problems) <= MOST_PROBLEMS + 1


def test_many_manifests_with_many_problems_name_the_first_of_them() -> None:
    unknown = {f"x{n}": 1 for n in range(90)}
    manifests = [{"kind": "Deployment", "name": f"a{n}", "engine": "simulated", **unknown} for n in range(1000)]
    began = time.process_time()
    with pytest.raises(ManifestError) as refused:
        parse_manifest_objects(list(manifests))
    assert time.process_time() - began < WITHIN_S
    *named, last = refused.value.problems
    assert len(named) == MOST_PROBLEMS
    assert named[0].path == "[0].x0"
    assert last.message == f"has more problems than these {MOST_PROBLEMS}; mend them first"
