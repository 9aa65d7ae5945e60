"""Fetches the image of a container, with progress in words and a deadline since the last of it."""

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

_LOOK_S: Final = 1.0  # Docker says nothing while a registry is silent; what is there is told all the same
_COMES: Final = "Downloading"
_IS_HERE: Final = ("Download complete", "Pull complete", "Already exists", "Verifying Checksum")
_NO_PROGRESS: Final = ("Retrying in", "Waiting")


class PullWords:
    """What Docker has said of the layers of one image."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}  # bytes that are here, and all, by layer

    @property
    def total(self) -> int:
        """Bytes of the layers whose size is known."""
        return sum(total for _, total in self._layers.values())

    @property
    def there(self) -> int:
        """Bytes that are here."""
        return sum(there for there, _ in self._layers.values())

    def take(self, word: Mapping[str, Any]) -> bool:
        """Takes one word; returns whether it tells of progress."""
        layer, status = str(word.get("id", "")), str(word.get("status", ""))
        detail = word.get("progressDetail") or {}
        if status == _COMES and detail.get("total"):
            self._layers[layer] = (int(detail.get("current") or 0), int(detail["total"]))
        elif status in _IS_HERE and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        return not status.startswith(_NO_PROGRESS)


async def provide_image(
    engine: DockerEngine, container: ContainerOrder, stall_s: float, tell: Callable[[str], None]
) -> None:
    """Returns once the image is on this host. Cancelling it ends the pull; layers that are whole stay.

    Raises:
        SpawnError: it cannot be had.
    """
    reference = container.image
    try:
        if container.pull != "always" and await engine.image(reference) is not None:
            return
        if container.pull == "never":
            raise SpawnError(f"{Cause.IMAGE_NOT_FOUND}: {reference} is not on this host, and `pull` is `never`")
        await _pull(engine, reference, stall_s, tell)
        if await engine.image(reference) is None:
            raise SpawnError(pull_error(reference, "the pull ended before the image was whole"))
    except DockerAwayError as error:
        raise SpawnError(f"{Cause.IMAGE_PULL_FAILED}: {reference}: Docker does not answer: {error}") from error
    except DockerRefusalError as error:
        raise SpawnError(pull_error(reference, str(error))) from error


async def _pull(engine: DockerEngine, reference: str, stall_s: float, tell: Callable[[str], None]) -> None:
    tell(f"{PULLING}{reference}")
    login = await stored_login(registry_of(reference))
    words, progress = PullWords(), Progress(reference, stall_s, time.monotonic(), PULLING.strip())
    try:
        async with contextlib.aclosing(engine.pull(reference, login.auth, stall_s)) as said:
            await wait_first(_take(said, words, reference, stall_s), _tell_on(words, progress, tell))
    except DockerRefusalError as error:
        raise DockerRefusalError(error.status, "; ".join(filter(None, (str(error), login.trouble)))) from error


async def _take(said: AsyncGenerator[dict[str, Any], None], words: PullWords, reference: str, stall_s: float) -> None:
    """Takes Docker's words until the last one.

    Raises:
        SpawnError: none has told of progress for `stall_s`, or one makes no sense.
    """
    moved_s, before = time.monotonic(), (0, "")
    while True:
        try:
            async with asyncio.timeout(max(0.0, moved_s + stall_s - time.monotonic())):
                word = await anext(said)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            text = f"{Cause.IMAGE_PULL_FAILED}: {reference}: no progress for {stall_s:g} s"
            raise SpawnError(text) from error
        try:
            now = (words.there, f"{word.get('status')}{word.get('progressDetail')}{word.get('id')}")
            tells = words.take(word)
        except (AttributeError, TypeError, ValueError) as error:
            raise SpawnError(pull_error(reference, f"Docker's answer makes no sense: {word!r:.200}")) from error
        if tells and now != before:
            moved_s, before = time.monotonic(), now


async def _tell_on(words: PullWords, progress: Progress, tell: Callable[[str], None]) -> None:
    """Tells what is there, as often as `progress` allows. Never returns."""
    while True:
        progress.expect(words.total)
        if words.total and (told := progress.told(words.there, time.monotonic())):
            tell(told)
        await asyncio.sleep(_LOOK_S)
