"""Rounds of GPU figures: only what has changed, in columns, small on the wire."""

import random
import zlib
from dataclasses import replace
from typing import Any

import orjson

from controller.live.gpu_feed import GpuRounds
from controller.store.views.gpus import GpuFigure

MOST_BYTES = 32 * 2**10


def taken(rounds: GpuRounds, figures: list[GpuFigure]) -> Any:
    message = rounds.next(figures)
    return None if message is None else orjson.loads(message)


def test_rounds_tell_what_has_changed() -> None:
    rounds = GpuRounds()
    figures = [GpuFigure(f"GPU-{n}", 10 * n, 100, 0) for n in range(4)]
    first = {"type": "gpus", "uuid": ["GPU-0", "GPU-1", "GPU-2", "GPU-3"], "utilization": [0, 10, 20, 30],
             "used_mib": [100] * 4, "claimed_mib": [0] * 4}  # fmt: skip
    assert taken(rounds, figures) == first
    assert orjson.loads(rounds.all()) == first
    assert taken(rounds, figures) is None
    figures = [*figures[:2], replace(figures[2], utilization=None), figures[3]]
    assert taken(rounds, figures) == {"type": "round", "index": [2], "utilization": [None]}
    figures = [replace(one, claimed_mib=5) for one in figures]
    told = taken(rounds, figures)
    assert told == {"type": "round", "index": None, "claimed_mib": [5] * 4}
    assert taken(rounds, figures[1:])["uuid"] == ["GPU-1", "GPU-2", "GPU-3"]


def test_a_round_of_8000_gpus_is_small() -> None:
    chance = random.Random(7)  # noqa: S311 - a test
    for share in (0.3, 0.74, 1.0):
        rounds = GpuRounds()
        figures = [GpuFigure(f"GPU-{n}", 0, 0, chance.choice((0, 40_960, 81_920))) for n in range(8000)]
        rounds.next(figures)
        figures = [
            replace(one, utilization=chance.randint(0, 100), used_mib=chance.randint(0, 81_920))
            if chance.random() < share
            else one
            for one in figures
        ]
        packer = zlib.compressobj(wbits=-15)
        message = rounds.next(figures)
        assert message is not None
        assert len(packer.compress(message) + packer.flush()) <= MOST_BYTES, share
