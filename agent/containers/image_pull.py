"""Pulls the image of a container, with reported progress and a deadline since the last progress."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from agent.containers.docker_engine import DockerAwayError, DockerEngine, DockerRefusalError
from agent.containers.registry_login import stored_login
from agent.decide.containers import pull_error, registry_of
from agent.errors import SpawnError
from agent.model_cache.progress import Progress
from agent.tasks import wait_first
from schemas.exit_causes import Cause
from schemas.wire import PULLING, ContainerOrder

_REPORT_S: Final = 1.0  # independent of Docker's messages, which stop while a registry is silent
_DOWNLOADING: Final = "Downloading"
_DOWNLOADED: Final = ("Download complete", "Pull complete", "Already exists", "Verifying Checksum")
_NO_PROGRESS: Final = ("Retrying in", "Waiting")


class PulledLayers:
    """The layers of one image, as Docker has reported them."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}  # downloaded and all bytes, by layer

    @property
    def total(self) -> int:
        """Bytes of all layers of known size."""
        return sum(total for _, total in self._layers.values())

    @property
    def downloaded(self) -> int:
        return sum(downloaded for downloaded, _ in self._layers.values())

    def take(self, message: Mapping[str, Any]) -> bool:
        """Takes one message; returns whether it reports progress."""
        layer, status = str(message.get("id", "")), str(message.get("status", ""))
        detail = message.get("progressDetail") or {}
        if status == _DOWNLOADING and detail.get("total"):
            self._layers[layer] = (int(detail.get("current") or 0), int(detail["total"]))
        elif status in _DOWNLOADED and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        return not status.startswith(_NO_PROGRESS)


async def provide_image(
    engine: DockerEngine, container: ContainerOrder, stall_s: float, report: Callable[[str], None]
) -> None:
    """Returns once the image is on this host; SpawnError if it cannot be pulled.

    Cancelling the call ends the pull; complete layers stay.
    """
    reference = container.image
    try:
        if container.pull != "always" and await engine.image(reference) is not None:
            return
        if container.pull == "never":
            raise SpawnError(f"{Cause.IMAGE_NOT_FOUND}: {reference} is not on this host, and `pull` is `never`")
        await _pull(engine, reference, stall_s, report)
        if await engine.image(reference) is None:
            raise SpawnError(pull_error(reference, "the pull ended before the image was whole"))
    except DockerAwayError as error:
        raise SpawnError(f"{Cause.IMAGE_PULL_FAILED}: {reference}: Docker does not answer: {error}") from error
    except DockerRefusalError as error:
        raise SpawnError(pull_error(reference, str(error))) from error


async def _pull(engine: DockerEngine, reference: str, stall_s: float, report: Callable[[str], None]) -> None:
    report(f"{PULLING}{reference}")
    login = await stored_login(registry_of(reference))
    layers, progress = PulledLayers(), Progress(reference, stall_s, time.monotonic(), PULLING.strip())
    try:
        async with contextlib.aclosing(engine.pull(reference, login.auth, stall_s)) as messages:
            await wait_first(_take(messages, layers, reference, stall_s), _report_progress(layers, progress, report))
    except DockerRefusalError as error:
        raise DockerRefusalError(error.status, "; ".join(filter(None, (str(error), login.trouble)))) from error


async def _take(
    messages: AsyncGenerator[dict[str, Any], None], layers: PulledLayers, reference: str, stall_s: float
) -> None:
    """Takes all messages. Raises SpawnError after `stall_s` without progress, or if a message is invalid."""
    moved_s, before = time.monotonic(), (0, "")
    while True:
        try:
            async with asyncio.timeout(max(0.0, moved_s + stall_s - time.monotonic())):
                message = await anext(messages)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            text = f"{Cause.IMAGE_PULL_FAILED}: {reference}: no progress for {stall_s:g} s"
            raise SpawnError(text) from error
        try:
            now = (layers.downloaded, f"{message.get('status')}{message.get('progressDetail')}{message.get('id')}")
            progressed = layers.take(message)
        except (AttributeError, TypeError, ValueError) as error:
            raise SpawnError(pull_error(reference, f"Docker's answer makes no sense: {message!r:.200}")) from error
        if progressed and now != before:
            moved_s, before = time.monotonic(), now


async def _report_progress(layers: PulledLayers, progress: Progress, report: Callable[[str], None]) -> None:
    """Never returns."""
    while True:
        progress.expect(layers.total)
        if layers.total and (text := progress.update(layers.downloaded, time.monotonic())):
            report(text)
        await asyncio.sleep(_REPORT_S)
