"""What one request uses, from its admission to its end, and the sums of requests that the store does not have yet."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from controller.live.key_use import Counts, UsageRow
from gateway.bodies.parameters import ANY_SIZE, AnswerSize, Parameters
from gateway.quotas.limits import KeyUse, Ticket
from gateway.quotas.token_history import FIRST_ANSWER, TokenHistory
from gateway.usage.answer_usage import AnswerUsage, Tokens, estimated_completion, estimated_prompt

_WITH_COMPLETION: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"},
)
_ERROR: Final = 400
_MINUTE_S: Final = 60
_HOUR_MIN: Final = 60
MOST_ROWS: Final = 50_000  # while the database is away; then minutes become hours
MOST_IN_BATCH: Final = 5_000
Name = tuple[int, str, str, str]


class UsageBatches:
    """Usage by key, model, endpoint and minute since the last batch that the store has taken."""

    def __init__(self) -> None:
        self._rows: dict[Name, Counts] = {}
        self._number = 0
        self._sent: list[UsageRow] = []  # the rows of the batch that is under way, unchanged until the store has it

    def add(self, key: str, path: str, model: str, counts: Counts) -> None:
        """Counts one request. Requests for no deployment, whose name is empty, are not reported unless refused."""
        if not model and not counts.refused:
            return
        minute = int(time.time() // _MINUTE_S)
        endpoint = path.removeprefix("/v1").lstrip("/")
        name = (minute, key, model, endpoint)
        if name not in self._rows and len(self._rows) >= MOST_ROWS:
            name = (minute - minute % _HOUR_MIN, key, model, endpoint)
        sums = self._rows.get(name)
        if sums is None:
            self._rows[name] = counts
            return
        sums.requests += counts.requests
        sums.errors += counts.errors
        sums.prompt_tokens += counts.prompt_tokens
        sums.cached_tokens += counts.cached_tokens
        sums.completion_tokens += counts.completion_tokens
        sums.estimated += counts.estimated
        sums.in_flight_s += counts.in_flight_s
        sums.first_tokens += counts.first_tokens
        sums.first_token_s += counts.first_token_s
        sums.refused += counts.refused

    def next(self) -> tuple[int, Sequence[UsageRow]] | None:
        """The number and rows of the batch to hand over: the last batch again until it is `taken`."""
        if not self._sent:
            if not self._rows:
                return None
            self._number += 1
            names = list(self._rows)[:MOST_IN_BATCH]
            self._sent = [UsageRow(*name, self._rows.pop(name)) for name in names]
        return self._number, self._sent

    def taken(self) -> None:
        self._sent = []


class UsageRecord:
    """One request that its key's limits let pass. `over` ends it, once or more often.

    Attributes:
        counts: its usage, once it is over.
        use: the use of its key; None without limits.
        ticket: what it holds of the key's limits, until it is over.
        expected: tokens that it may use, as far as its key's limits need them; 0 until its body is complete.
    """

    __slots__ = (
        *("_answer", "_answers", "_batches", "_ended", "_first_at", "_history", "_model", "_now"),
        *("_prompt_bytes", "_size", "_size_of_answer", "_started", "_status", "_streams", "counts", "expected", "key"),
        *("path", "streamed", "ticket", "use"),
    )

    def __init__(
        self,
        key: str,
        path: str,
        now: Callable[[], float],
        batches: UsageBatches,
        ticket: Ticket | None = None,
        ended: Callable[[str], None] | None = None,
    ) -> None:
        self.key = key
        self.path = path
        self.ticket = ticket
        self.use: KeyUse | None = None if ticket is None else ticket.use
        self.expected = 0
        self._history: TokenHistory | None = None
        self._prompt_bytes = 0  # bytes of the prompt's text
        self._answers = 1
        self._now = now
        self._batches = batches
        self._ended = ended
        self._started = now()
        self._model = ""
        self._size = 0
        self._streams = False
        self._size_of_answer: AnswerSize = ANY_SIZE
        self._status = 0
        self._first_at: float | None = None
        self._answer: AnswerUsage | None = None
        self.streamed = False
        self.counts: Counts | None = None

    def expect(self, model: str, size: int, parameters: Parameters, prompt_bytes: int | None = None) -> None:
        """Its body is complete: notes the deployment, and the tokens that it may use.

        `size`: the body's, in bytes; 0 if it does not show tokens.
        `prompt_bytes`: bytes of its text; None: its key has no limits of tokens.
        """
        self._model, self._size = model, size
        self._streams, self._size_of_answer = parameters.stream is not None and parameters.streams, parameters.answer
        if prompt_bytes is None or self.use is None:
            return
        completes = self.path in _WITH_COMPLETION
        self._prompt_bytes, self._answers = prompt_bytes, parameters.answer.choices * parameters.prompts
        self._history = self.use.history(model if completes else f"{model} without answers")
        most, first = (parameters.answer.limit, FIRST_ANSWER) if completes else (None, 0)
        self.expected = self._history.reservation(prompt_bytes, self._answers, most, first)

    def answered(self, status: int, events: bool, encoding: str, length: int | None = None) -> None:
        """An engine's answer begins. `length`: the body's, in bytes, if stated."""
        self._status = status
        self.streamed = events
        self._answer = AnswerUsage(self._of_prompt(), events, encoding, self.path in _WITH_COMPLETION, length)

    def piece(self, data: bytes) -> bool:
        """Reads a piece of the engine's answer; returns whether it may hold a part of token counts."""
        answer = self._answer
        if answer is None:
            return True
        if self._first_at is None:
            self._first_at = self._now()
        return answer.feed(data)

    @property
    def failed(self) -> bool:
        return self._answer is not None and self._answer.failed

    def over(self, *, broken: bool = False, left_after_s: float | None = None) -> None:
        """Ends the record.

        Args:
            broken: the answer did not end as it should.
            left_after_s: its client left, or got no answer in time, this long after the engine got it; None: neither.
        """
        if self.counts is not None:
            return
        tokens = self._tokens() if left_after_s is None else self._tokens_when_left(left_after_s)
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.charge(tokens.prompt + tokens.completion, self._now())
            ticket.end()
        complete = not broken and left_after_s is None
        failed = broken or self._status >= _ERROR or self.failed
        first = self._first_at is not None and self.path in _WITH_COMPLETION and not failed
        if self._history is not None and self._answer is not None and complete and not failed:
            self._note(self._history, tokens)
        self.counts = counts = Counts(1, int(failed))
        counts.prompt_tokens, counts.cached_tokens = tokens.prompt, tokens.cached
        counts.completion_tokens, counts.estimated = tokens.completion, int(tokens.estimated)
        counts.in_flight_s = self._now() - self._started
        if first and self._first_at is not None:
            counts.first_tokens, counts.first_token_s = 1, self._first_at - self._started
        self._batches.add(self.key, self.path, self._model, counts)
        if self._ended is not None:
            self._ended(self.key)

    def _of_prompt(self) -> int:
        return self._size if self._history is None else self._prompt_bytes

    def _note(self, history: TokenHistory, tokens: Tokens) -> None:
        """Notes the usage of an answered request for later reservations."""
        if not self._size:  # its prompt is known by the answer alone
            history.note_answers(tokens.prompt + tokens.completion, self._answers)
            return
        history.note_answers(tokens.completion, self._answers)
        if self._prompt_bytes == self._size and not tokens.estimated:  # no media
            history.note_prompt(self._prompt_bytes, tokens.prompt)

    def _tokens_when_left(self, engine_s: float) -> Tokens:
        """Of an answer that its client did not get: its prompt was read, and a part was made unobserved.

        What an engine makes of a stream is observed at once.
        """
        if self._answer is None:
            tokens, unobserved = estimated_prompt(self._of_prompt()), not self._streams
        else:
            tokens, unobserved = self._tokens(), not self.streamed and self._status < _ERROR
        if not (unobserved and tokens.estimated and self.path in _WITH_COMPLETION):
            return tokens
        if self._first_at is not None:  # a complete answer begins once all of it is made
            engine_s -= self._now() - self._first_at
        made = estimated_completion(engine_s, self._size_of_answer)
        return tokens._replace(completion=max(tokens.completion, made))

    def _tokens(self) -> Tokens:
        """Empty without an engine's answer, and for engines' errors that report no tokens."""
        if self._answer is None:
            return Tokens()
        tokens = self._answer.tokens()
        return Tokens() if tokens.estimated and self._status >= _ERROR else tokens
