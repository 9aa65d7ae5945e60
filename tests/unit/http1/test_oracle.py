"""Our reader takes nothing that h11 refuses, and reads what both take alike, however the bytes are cut."""

import random
from collections import Counter

import pytest

from support.http1 import oracle

SEEDS = 8
QUICK = 400
NIGHTLY = 12_500


def compare(seed: int, count: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - repeatable
    verdicts: Counter[str] = Counter()
    for _ in range(count):
        chunks = oracle.stream(dice)
        our, their = oracle.ours(chunks), oracle.theirs(chunks)
        verdict = oracle.verdict(our, their)
        excused = verdict == "laxer" and oracle.has_wide_line(chunks)
        assert excused or verdict in ("same", "stricter"), (verdict, chunks, our, their)
        verdicts[verdict] += 1
        whole = oracle.ours([b"".join(chunks)])
        assert whole == our, f"the cuts make a difference: {chunks}"
    assert verdicts["same"] > count / 2, "too few streams that both take"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_streams_are_read_as_by_h11(seed: int) -> None:
    compare(seed, QUICK)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_100_000_streams_are_read_as_by_h11(seed: int) -> None:
    compare(seed, NIGHTLY)
