"""An account of every request of a soak: what its client saw, and what engines did with it."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NEVER_TAKEN = frozenset({400, 401, 403, 404, 429, 503})  # with these no engine has run the request


@dataclass(frozen=True)
class Kind:
    """A kind of request: what its prompt tells the engine, and how often it comes."""

    words: str
    weight: int
    stream: bool = False
    leaves: bool = False  # the client closes after two events


@dataclass(frozen=True)
class Seen:
    """What a client saw of one request.

    `end` is whole, error, cut, left, reset by a gateway that was ended just then, or lost: an end that says nothing.
    """

    id: str
    kind: Kind
    status: int
    end: str
    code: str = ""


@dataclass(frozen=True)
class Account:
    """Every request with what clients saw of it, and how often engines took and finished it."""

    seen: list[Seen]
    taken: Mapping[str, int]
    finished: Mapping[str, int]

    def violations(self) -> list[str]:
        """Requests that ran twice, were lost without a word, are unknown to clients, or whose answer does not fit."""
        found = []
        for seen in self.seen:
            taken, finished = self.taken.get(seen.id, 0), self.finished.get(seen.id, 0)
            if taken > 1:
                found.append(f"ran {taken} times: {seen}")
            if seen.end == "lost":
                found.append(f"lost: {seen}")
            if seen.end == "reset" and seen.code == "stopped" and taken:
                found.append(f"a gateway that stopped cleanly gave no word of it, though an engine ran it: {seen}")
            if seen.end == "whole" and (taken, finished) != (1, 1):
                found.append(f"answered, but taken {taken} times and finished {finished}: {seen}")
            if seen.status in NEVER_TAKEN and taken:
                found.append(f"refused with {seen.status}, but an engine ran it: {seen}")
        known = {seen.id for seen in self.seen}
        return found + [f"an engine ran it, and no client has seen its end: {id_}" for id_ in self.taken.keys() - known]

    def summary(self) -> str:
        """How many requests ended how."""
        ends = Counter(
            f"{seen.status} {seen.end}{f' {seen.code}' if seen.end == 'error' else ''}" for seen in self.seen
        )
        return json.dumps({"requests": len(self.seen), **dict(ends.most_common())})


def read_account(seen: list[Seen], journal: Path) -> Account:
    """Clients' and engines' sides of all requests; engines have written theirs to the journal."""
    taken: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    for line in journal.read_text().splitlines():
        word, request_id, *_ = line.split()
        taken[request_id] += word == "taken"
        finished[request_id] += word == "finished"
    return Account(seen, taken, finished)
