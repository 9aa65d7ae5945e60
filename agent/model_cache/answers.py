"""Answers `/cache`: GET lists the models, POST removes unused models of the query."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs

from agent.decide.eviction import CachedRevision, Use, held_bytes, is_used
from agent.engine_proxy.answers import error_body
from agent.model_cache.fetches import Fetches
from http1.protocol.streamed_answer import StreamedAnswer
from schemas.api.model_cache import CachedModels, CachedModelView, CachedRevisionView
from schemas.api.view import to_json

_MOST_FIELDS: Final = 2_000
_JSON: Final = (b"content-type", b"application/json; charset=utf-8")
_SCHEME: Final = "hf:"


class CacheAnswers:
    """Requests of the controller, which the proxy has authenticated."""

    def __init__(self, fetches: Fetches) -> None:
        self._fetches = fetches

    async def models(self, response: StreamedAnswer) -> None:
        await self._send(response, await self._fetches.room.revisions())

    async def prune(self, response: StreamedAnswer, query: str) -> None:
        """Removes revisions: `model=hf:org/name[@revision]` (repeatable) and `unused_for_s=N`."""
        try:
            parameters = parse_qs(query, max_num_fields=_MOST_FIELDS)
            unused_for_s = float(parameters.get("unused_for_s", ["0"])[-1])
        except ValueError as error:
            response.start(400, [_JSON])
            await response.send(error_body("bad_request", str(error)))
            return
        models = [model.removeprefix(_SCHEME) for model in parameters.get("model", ())]
        await self._send(response, await self._fetches.room.prune(models, unused_for_s))

    async def _send(self, response: StreamedAnswer, revisions: Iterable[CachedRevision]) -> None:
        in_use = await self._fetches.uses.used()
        response.start(200, [_JSON])
        await response.send(to_json(CachedModels(items=models_of(revisions, in_use))))


def models_of(revisions: Iterable[CachedRevision], in_use: Collection[Use]) -> tuple[CachedModelView, ...]:
    """The models of these revisions, by name."""
    by_repo: dict[str, list[CachedRevision]] = {}
    for revision in revisions:
        by_repo.setdefault(revision.repo, []).append(revision)
    return tuple(_model(repo, of_repo, in_use) for repo, of_repo in sorted(by_repo.items()))


def _model(repo: str, revisions: Collection[CachedRevision], in_use: Collection[Use]) -> CachedModelView:
    return CachedModelView(
        name=_SCHEME + repo,
        size_bytes=held_bytes(revisions),
        used_at=datetime.fromtimestamp(max(r.used_s for r in revisions), UTC),
        in_use=any(is_used(r, in_use) for r in revisions),
        revisions={name: r.commit for r in revisions if r.commit for name in (r.commit, *r.names)},
        snapshots=tuple(
            CachedRevisionView(
                commit=r.commit,
                names=r.names,
                size_bytes=r.size_bytes,
                used_at=datetime.fromtimestamp(r.used_s, UTC),
                in_use=is_used(r, in_use),
            )
            for r in sorted(revisions, key=lambda revision: -revision.used_s)
            if not r.is_foreign
        ),
    )
