"""Answers `/cache`: GET lists the models, POST removes those of the query, which no process uses."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs

from agent.decide.eviction import CachedModel
from agent.model_cache.fetches import Fetches
from agent.proxy_answers import error_body
from http1.streamed_answer import StreamedAnswer
from schemas.api.model_cache import CachedModels, CachedModelView

_MOST_FIELDS: Final = 2_000
_JSON: Final = (b"content-type", b"application/json; charset=utf-8")
_SCHEME: Final = "hf:"


class CacheAnswers:
    """For the controller, which the proxy has authenticated."""

    def __init__(self, fetches: Fetches) -> None:
        self._fetches = fetches

    async def models(self, response: StreamedAnswer) -> None:
        """What the cache holds."""
        await self._send(response, await self._fetches.models())

    async def prune(self, response: StreamedAnswer, query: str) -> None:
        """Removes models: `model=hf:org/name` (repeatable) and `unused_for_s=N`."""
        try:
            asked = parse_qs(query, max_num_fields=_MOST_FIELDS)
            unused_for_s = float(asked.get("unused_for_s", ["0"])[-1])
        except ValueError as error:
            response.start(400, [_JSON])
            await response.send(error_body("bad_request", str(error)))
            return
        repos = [one.removeprefix(_SCHEME) for one in asked.get("model", ())]
        await self._send(response, await self._fetches.prune(repos, unused_for_s))

    async def _send(self, response: StreamedAnswer, models: Iterable[CachedModel]) -> None:
        used = self._fetches.used()
        views = tuple(
            CachedModelView(
                name=_SCHEME + one.repo,
                size_bytes=one.size_bytes,
                used_at=datetime.fromtimestamp(one.used_s, UTC),
                in_use=one.repo in used,
                revisions=dict(one.revisions),
            )
            for one in models
        )
        response.start(200, [_JSON])
        await response.send(CachedModels(items=views).model_dump_json().encode())
