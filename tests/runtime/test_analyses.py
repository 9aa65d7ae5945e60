"""Many deployments of one model, one reading of it."""

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path

from controller.domain.instances import Revision
from controller.leader.analyses import Analyses
from controller.runtime.clock import SystemClock
from schemas.manifest.deployment import DeploymentSpec
from support.builders.model_files import model_folder

LIMIT_S = 30.0


class Metrics:
    def __init__(self) -> None:
        self.started = 0

    def in_flight(self, n: int) -> None: ...
    def cancel_seconds(self, seconds: float) -> None: ...
    def count(self, _purpose: str, outcome: str) -> None:
        self.started += outcome == "started"


def revision(folder: Path, n: int) -> Revision:
    """Each of another input hash, since each gives its server other args."""
    spec = DeploymentSpec.model_validate(
        {"engine": "transformers", "model": f"path:{folder}", "args": {"seed": n}, "env": {"N": str(n)}}
    )
    return Revision(generation=1, spec=spec, input_hash=f"hash {n}", created_at=datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_model_is_read_once_for_all_deployments(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", {"a": ("F16", [2**20], 2**21)}, {"num_attention_heads": 4})
    metrics, reported = Metrics(), asyncio.Queue[str]()
    analyses = Analyses(clock=SystemClock(), metrics=metrics, hint=reported.put_nowait)
    async with asyncio.timeout(LIMIT_S):
        for n in range(50):
            analyses.start(f"d{n}", revision(folder, n))
        assert {await reported.get() for _ in range(50)} == {f"d{n}" for n in range(50)}
        shutil.rmtree(folder)  # a later deployment gets the cached reading
        analyses.start("late", revision(folder, 99))
        assert await reported.get() == "late"
    finished = [analyses.finished(uid) for uid in ("d0", "d49", "late")]
    assert [(f.need is not None, f.input_hash) for f in finished if f] == [
        (True, "hash 0"), (True, "hash 49"), (True, "hash 99"),
    ]  # fmt: skip
    assert metrics.started == 1
    await analyses.aclose()


async def test_failed_keys_are_retried(tmp_path: Path) -> None:
    metrics, reported = Metrics(), asyncio.Queue[str]()
    analyses = Analyses(clock=SystemClock(), metrics=metrics, hint=reported.put_nowait)
    async with asyncio.timeout(LIMIT_S):
        analyses.start("d", revision(tmp_path / "m", 1))
        await reported.get()
        first = analyses.finished("d")
        assert first is not None
        assert first.need is None
        assert first.retryable
        model_folder(tmp_path / "m", {"a": ("F16", [4], 8)})
        analyses.start("d", revision(tmp_path / "m", 1))
        await reported.get()
    second = analyses.finished("d")
    assert second is not None
    assert second.need is not None
    assert metrics.started == 2
    await analyses.aclose()
