"""Progress of a pull: what is there is told also when Docker falls silent afterwards."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from agent.containers import image_pull
from agent.containers.docker_engine import DockerRefusalError
from agent.containers.image_pull import provide_image
from agent.errors import SpawnError
from agent.model_cache import progress
from schemas.wire import PULLING, ContainerOrder

MIB = 2**20


class SilentEngine:
    """Says how much is there twice in a moment, and then nothing."""

    async def image(self, _reference: str) -> None: ...

    async def pull(self, _reference: str, _auth: Any, _stall_s: float) -> AsyncGenerator[dict[str, Any], None]:
        for current in (1, 7):
            yield {
                "status": "Downloading",
                "id": "a",
                "progressDetail": {"current": current * MIB, "total": 9 * MIB},
            }
        await asyncio.Event().wait()


async def test_the_last_word_before_a_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REPORT_EVERY_S", 0.1)
    monkeypatch.setattr(image_pull, "_REPORT_S", 0.02)
    told: list[str] = []
    with pytest.raises(SpawnError, match="no progress for 0"):
        await provide_image(SilentEngine(), ContainerOrder(image="a/b", pull="missing"), 0.5, told.append)  # type: ignore[arg-type]
    assert told[0] == f"{PULLING}a/b"
    assert told[-1].startswith(f"{PULLING}a/b: 7 MiB of 9 MiB"), told


@pytest.mark.parametrize(
    "word",
    [
        {"status": "Downloading", "id": "a", "progressDetail": 7},
        {"status": "Downloading", "id": "a", "progressDetail": {"total": "many"}},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": [1], "total": 5}},
        ["Downloading"],
    ],
)
async def test_words_that_make_no_sense_end_the_pull_alone(word: Any) -> None:
    class OddEngine:
        async def image(self, _reference: str) -> None:
            return None

        async def pull(self, _reference: str, _auth: object, _stall_s: float) -> AsyncGenerator[Any, None]:
            yield word

    with pytest.raises(SpawnError, match="Docker's answer makes no sense"):
        await provide_image(OddEngine(), ContainerOrder(image="a/b", pull="missing"), 0.5, lambda _: None)  # type: ignore[arg-type]


async def test_a_refused_pull_names_the_broken_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosedEngine:
        async def image(self, _reference: str) -> None:
            return None

        async def pull(self, _reference: str, auth: object, _stall_s: float) -> AsyncGenerator[Any, None]:
            assert auth is None
            raise DockerRefusalError(401, "unauthorized")
            yield

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SpawnError, match=r"unauthorized; .*/config\.json: it is not valid JSON; correct it"):
        await provide_image(ClosedEngine(), ContainerOrder(image="a/b", pull="missing"), 5, lambda _: None)  # type: ignore[arg-type]
