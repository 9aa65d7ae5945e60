"""What one request uses, from its admission to its end."""

from collections.abc import Callable, Mapping
from typing import Final

from controller.live.key_use import Counts
from gateway.bodies.parameters import ANY_SIZE, AnswerSize, Parameters
from gateway.quotas.limits import KeyUse, Ticket
from gateway.quotas.token_history import FIRST_ANSWER, TokenHistory
from gateway.usage.answer_usage import AnswerUsage, Tokens, estimated_completion, estimated_prompt

_WITH_COMPLETION: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"},
)
_ERROR: Final = 400
Record = Callable[["UsageRecord", str, Counts], None]


class UsageRecord:
    """One request that its key's limits let pass. `over` ends it, once or more often.

    Attributes:
        key: id of its key.
        path: of the request.
        streamed: its answer is a stream of events.
        counts: what it used, once it is over.
        use: of its key.
        ticket: until it is over.
        expected: tokens that it may use, as far as its key's limits ask; 0 until its body is complete.
    """

    __slots__ = (
        "_answer",
        "_answers",
        "_began",
        "_first_at",
        "_history",
        "_model",
        "_now",
        "_prompt_bytes",
        "_record",
        "_size",
        "_size_of_answer",
        "_status",
        "_streams",
        "counts",
        "expected",
        "key",
        "path",
        "streamed",
        "ticket",
        "use",
    )

    def __init__(self, key: str, path: str, ticket: Ticket, now: Callable[[], float], record: Record) -> None:
        self.key = key
        self.path = path
        self.ticket: Ticket | None = ticket
        self.use: KeyUse = ticket.use
        self.expected = 0
        self._history: TokenHistory | None = None
        self._prompt_bytes = 0  # of its text
        self._answers = 1
        self._now = now
        self._record = record
        self._began = now()
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

        Args:
            model: name of the deployment.
            size: of the body in bytes; 0: it says nothing of tokens.
            parameters: of the body.
            prompt_bytes: bytes of its text; None: its key has no limits of tokens.
        """
        self._model, self._size = model, size
        self._streams, self._size_of_answer = parameters.stream is not None and parameters.streams, parameters.answer
        if prompt_bytes is None:
            return
        completes = self.path in _WITH_COMPLETION
        self._prompt_bytes, self._answers = prompt_bytes, parameters.answer.choices * parameters.prompts
        self._history = self.use.history(model if completes else f"{model} without answers")
        most, first = (parameters.answer.limit, FIRST_ANSWER) if completes else (None, 0)
        self.expected = self._history.reservation(prompt_bytes, self._answers, most, first)

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
        """Whether the answer held an error event."""
        return self._answer is not None and self._answer.failed

    def headers(self, fraction: float | None) -> Mapping[str, str]:
        """What its key has left, for the headers of the answer."""
        return {} if self.ticket is None else self.ticket.headers(self._now(), fraction)

    def over(self, *, broken: bool = False, left_after_s: float | None = None) -> None:
        """It has ended.

        Args:
            broken: not as an answer should.
            left_after_s: its client left, or waited in vain, when an engine had had it for so long; None: neither.
        """
        ticket, self.ticket = self.ticket, None
        if ticket is None:
            return
        tokens = self._tokens() if left_after_s is None else self._tokens_when_left(left_after_s)
        ticket.charge(tokens.prompt + tokens.completion, self._now())
        ticket.end()
        whole = not broken and left_after_s is None
        failed = broken or self._status >= _ERROR or self.failed
        first = self._first_at is not None and self.path in _WITH_COMPLETION and not failed
        if self._history is not None and self._answer is not None and whole and not failed:
            self._note(self._history, tokens)
        self.counts = counts = Counts(1, int(failed))
        counts.prompt_tokens, counts.cached_tokens = tokens.prompt, tokens.cached
        counts.completion_tokens, counts.estimated = tokens.completion, int(tokens.estimated)
        counts.in_flight_s = self._now() - self._began
        if first and self._first_at is not None:
            counts.first_tokens, counts.first_token_s = 1, self._first_at - self._began
        self._record(self, self._model, counts)

    def _of_prompt(self) -> int:
        """Bytes by which its prompt is estimated, where the engine reports nothing."""
        return self._size if self._history is None else self._prompt_bytes

    def _note(self, history: TokenHistory, tokens: Tokens) -> None:
        """For the requests that follow: what this one, which was answered, has used."""
        if not self._size:  # its prompt is known by the answer alone
            history.note_answers(tokens.prompt + tokens.completion, self._answers)
            return
        history.note_answers(tokens.completion, self._answers)
        if self._prompt_bytes == self._size and not tokens.estimated:  # no media
            history.note_prompt(self._prompt_bytes, tokens.prompt)

    def _tokens_when_left(self, engine_s: float) -> Tokens:
        """Of an answer that its client did not get: its prompt was read, and some of it was made without being seen.

        What an engine makes of a stream is seen at once.
        """
        if self._answer is None:
            tokens, unseen = estimated_prompt(self._of_prompt()), not self._streams
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
