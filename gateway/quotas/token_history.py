"""How many tokens a request is expected to use, by what the latest ones of its key and model used. Pure."""

from collections import deque
from math import ceil
from typing import Final

FIRST_ANSWER: Final = 512  # tokens of an answer of which nothing is known
_BYTES_PER_TOKEN: Final = 4.0  # of a prompt, until it is measured
_RANGE: Final = (1.0, 8.0)  # bounds of the measured value: fields that are no prompt must not make prompts seem small
_MOST_BYTES: Final = 2**20  # that count fully; older ones count for half
_LATEST: Final = 100  # answers
_ENOUGH: Final = 20  # answers that have a 95th percentile of their own
_PERCENTILE: Final = 95


class TokenHistory:
    """The latest requests of one key to one model."""

    __slots__ = ("_answers", "_bytes", "_tokens")

    def __init__(self) -> None:
        self._answers: deque[int] = deque(maxlen=_LATEST)
        self._bytes = 0.0
        self._tokens = 0.0

    @property
    def bytes_per_token(self) -> float:
        if self._tokens <= 0:
            return _BYTES_PER_TOKEN
        least, most = _RANGE
        return min(most, max(least, self._bytes / self._tokens))

    def answer(self, first: int = FIRST_ANSWER) -> int:
        """The 95th percentile of the tokens of an answer; at least `first` while few answers are known."""
        if not self._answers:
            return first
        percentile = sorted(self._answers)[ceil(len(self._answers) * _PERCENTILE / 100) - 1]
        return percentile if len(self._answers) >= _ENOUGH else max(first, percentile)

    def reservation(self, prompt_bytes: int, answers: int, most: int | None, first: int = FIRST_ANSWER) -> int:
        """The tokens to reserve for a request.

        `most`: tokens of each answer, as the request limits them; None: it does not.
        `first`: tokens of an answer while few are known.
        """
        return ceil(prompt_bytes / self.bytes_per_token) + answers * (self.answer(first) if most is None else most)

    def note_prompt(self, prompt_bytes: int, tokens: int) -> None:
        """Notes the tokens of a prompt, as its engine reported them."""
        self._bytes += prompt_bytes
        self._tokens += tokens
        if self._bytes > _MOST_BYTES:
            self._bytes, self._tokens = self._bytes / 2, self._tokens / 2

    def note_answers(self, tokens: int, answers: int) -> None:
        """Notes the tokens of all answers of a request together."""
        self._answers.append(ceil(tokens / max(1, answers)))
