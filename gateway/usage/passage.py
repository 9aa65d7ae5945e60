"""What one request uses, from its admission to its end."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from controller.live.key_use import Counts
from gateway.limits.limits import Ticket
from gateway.request_body import ANY_SIZE, NO_OPTIONS, AnswerSize, Asked
from gateway.usage.answer_usage import AnswerUsage, Tokens, estimated_completion, estimated_prompt
from gateway.usage.include_usage import is_streamed

_WITH_COMPLETION: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"},
)
_ERROR: Final = 400
Record = Callable[["Passage", str, Counts], None]


class Passage:
    """One request that its key's limits let pass. `over` ends it, once or more often.

    Attributes:
        key: id of its key.
        path: of the request.
        streamed: its answer is a stream of events.
        counts: what it used, once it is over.
    """

    __slots__ = (
        "_answer",
        "_began",
        "_first_at",
        "_model",
        "_now",
        "_options",
        "_record",
        "_size",
        "_size_of_answer",
        "_status",
        "_ticket",
        "counts",
        "key",
        "path",
        "streamed",
    )

    def __init__(self, key: str, path: str, ticket: Ticket, now: Callable[[], float], record: Record) -> None:
        self.key = key
        self.path = path
        self._ticket: Ticket | None = ticket
        self._now = now
        self._record = record
        self._began = now()
        self._model = ""
        self._size = 0
        self._options: Mapping[str, Any] = NO_OPTIONS
        self._size_of_answer: AnswerSize = ANY_SIZE
        self._status = 0
        self._first_at: float | None = None
        self._answer: AnswerUsage | None = None
        self.streamed = False
        self.counts: Counts | None = None

    def asks(self, model: str, size: int, asked: Asked) -> None:
        """Its body is complete: it asks for this deployment, by so many bytes."""
        self._model, self._size = model, size
        self._options, self._size_of_answer = asked.options, asked.answer

    def answered(self, status: int, events: bool, encoding: str, length: int | None = None) -> None:
        """An engine's answer begins.

        Args:
            status: of the answer.
            events: whether it comes as a stream of them.
            encoding: its `Content-Encoding`.
            length: of its body in bytes, if it says so.
        """
        self._status = status
        self.streamed = events
        self._answer = AnswerUsage(self._size, events, encoding, self.path in _WITH_COMPLETION, length)

    def piece(self, data: bytes) -> bool:
        """Reads a piece of the engine's answer; returns whether it may hold a part of token counts."""
        answer = self._answer
        if answer is None:
            return True
        if self._first_at is None:
            self._first_at = self._now()
        return answer.feed(data)

    def limited(self) -> bool:
        """Whether its key has limits."""
        return self._ticket is not None and bool(self._ticket.use.shares)

    def headers(self, fraction: float | None) -> Mapping[str, str]:
        """What its key has left, for the headers of the answer."""
        return {} if self._ticket is None else self._ticket.headers(self._now(), fraction)

    def over(self, *, broken: bool = False, left_after_s: float | None = None) -> None:
        """It has ended.

        Args:
            broken: not as an answer should.
            left_after_s: its client left when an engine had had it for so long; None: it did not.
        """
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        tokens = self._tokens() if left_after_s is None else self._tokens_when_left(left_after_s)
        ticket.charge(tokens.prompt + tokens.completion)
        ticket.end()
        failed = broken or self._status >= _ERROR or (self._answer is not None and self._answer.failed)
        first = self._first_at is not None and self.path in _WITH_COMPLETION and not failed
        self.counts = counts = Counts(1, int(failed))
        counts.prompt_tokens, counts.cached_tokens = tokens.prompt, tokens.cached
        counts.completion_tokens, counts.estimated = tokens.completion, int(tokens.estimated)
        counts.in_flight_s = self._now() - self._began
        if first and self._first_at is not None:
            counts.first_tokens, counts.first_token_s = 1, self._first_at - self._began
        self._record(self, self._model, counts)

    def _tokens_when_left(self, engine_s: float) -> Tokens:
        """Of an answer that its client did not take: its prompt was read, and some of it was made without being seen.

        What an engine makes of a stream is seen at once.
        """
        if self._answer is None:
            tokens, unseen = estimated_prompt(self._size), not is_streamed(self._options)
        else:
            tokens, unseen = self._tokens(), not self.streamed and self._status < _ERROR
        if not (unseen and tokens.estimated and self.path in _WITH_COMPLETION):
            return tokens
        if self._first_at is not None:  # a whole answer begins once all of it is made
            engine_s -= self._now() - self._first_at
        made = estimated_completion(engine_s, self._size_of_answer)
        return tokens._replace(completion=max(tokens.completion, made))

    def _tokens(self) -> Tokens:
        """None for what no engine answered, and for engines' errors that tell none."""
        if self._answer is None:
            return Tokens()
        tokens = self._answer.tokens()
        return Tokens() if tokens.estimated and self._status >= _ERROR else tokens
