"""Checks what engines, clients and an operator recorded, each by itself: `python external_checker.py RECORDS`.

It imports nothing of the product and knows nothing of its audit. A record is a line of JSON with its time `t`, by the
host's monotonic clock, and `what`. Engines: held, conflict, beat, taken, refused, finished. Clients: asked, ended. The
operator: stopped (it has seen that nothing of the model is left) and started (before it asks for that). Faults: fault,
with the door whose clients it may cost their answers.
"""

import itertools
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
ENDS = {"whole", "error", "cut", "left", "lost"}
NOT_RUN = {401, 403, 404, 409, 429, 503}  # with these statuses no engine has run the request


def read(folder: Path) -> list[Record]:
    """All records, by time. A last line that its process did not complete does not count."""
    lines = (line for file in folder.glob("*.jsonl") for line in file.read_text().split("\n")[:-1])
    return sorted(map(json.loads, lines), key=lambda record: record["t"])


def violations(records: list[Record]) -> list[str]:
    """What must not be; empty: all is well."""
    by: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        by[record["what"]].append(record)
    last_sign = {record["engine"]: record["t"] for record in records if "engine" in record}
    runs, found = _runs(by)
    return [*found, *_gpus(by, last_sign), *_requests(by, runs), *_stopped(by, last_sign, runs)]


def _gpus(by: dict[str, list[Record]], last_sign: dict[str, float]) -> Iterator[str]:
    """No GPU has two engines at a time, and no start two processes."""
    for record in by["conflict"]:
        yield f"GPU {record['gpu']} was locked by another engine when {record['model']} began on it: {record}"
    holders: defaultdict[str, list[Record]] = defaultdict(list)
    for record in by["held"]:
        for gpu in record["gpus"]:
            holders[gpu].append(record)
    for gpu, held in holders.items():
        for before, after in itertools.pairwise(held):
            if last_sign[before["engine"]] > after["t"]:
                yield f"GPU {gpu} had two engines: {before}, until {last_sign[before['engine']]}, and {after}"
    for start, count in Counter(record["start"] for record in by["held"]).items():
        if count > 1:
            yield f"{start} was started {count} times"


def _runs(by: dict[str, list[Record]]) -> tuple[dict[str, list[Record]], list[str]]:
    """What engines ran of each request; it runs once.

    What an engine refuses with 503 may go elsewhere. What it refuses for the sake of `stream_options` the same engine
    may get once more, without it.
    """
    refused = {(record["id"], record["engine"]): record["status"] for record in by["refused"]}
    runs: defaultdict[str, list[Record]] = defaultdict(list)
    resent: dict[str, Record] = {}
    found = []
    for record in by["taken"]:
        status = refused.get((record["id"], record["engine"]))
        if status == 400 and record["usage"]:
            if record["id"] in resent:
                found.append(f"{record['id']} was sent twice with stream_options: {record}")
            resent[record["id"]] = record
            continue
        if record["id"] in resent and resent[record["id"]]["engine"] != record["engine"]:
            found.append(f"{record['id']} was sent again to another engine: {record}")
        if status != 503:
            runs[record["id"]].append(record)
    found += [f"{id_} ran {len(all_)} times: {all_}" for id_, all_ in runs.items() if len(all_) > 1]
    return runs, found


def _requests(by: dict[str, list[Record]], runs: dict[str, list[Record]]) -> Iterator[str]:
    """Each has one end, of which client and engines have the same account."""
    asked = {record["id"]: record for record in by["asked"]}
    ended = Counter(record["id"] for record in by["ended"])
    finished = Counter(record["id"] for record in by["finished"])
    yield from (f"{id_} had {ended[id_]} ends" for id_ in asked if ended[id_] != 1)
    yield from (f"{id_} was sent by no client" for id_ in {*ended, *runs, *finished} - {*asked})
    for end in by["ended"]:
        opening, ran = asked.get(end["id"], end), runs.get(end["id"], [])
        if end["end"] not in ENDS or (end["end"] == "lost" and not _excused(opening, end, by["fault"])):
            yield f"a request had no proper end: {end}"
        if end["status"] in NOT_RUN and ran:
            yield f"it was refused, and an engine ran it: {end}, {ran}"
        if end["end"] == "whole":
            if len(ran) != 1 or finished[end["id"]] != 1 or not opening["t"] <= ran[0]["t"] <= end["t"]:
                yield f"it was answered, and did not run once in that time: {end}, {ran}"
            elif end["answer"] != f"{opening['model']} {end['id']}" or ran[0]["model"] != opening["model"]:
                yield f"it got another request's answer: {end}, {ran}"


def _excused(opening: Record, end: Record, faults: Iterable[Record]) -> bool:
    return any(
        one["door"] == opening["door"] and one["t"] <= end["t"] and one["until"] >= opening["t"] for one in faults
    )


def _stopped(by: dict[str, list[Record]], last_sign: dict[str, float], runs: dict[str, list[Record]]) -> Iterator[str]:
    """A stopped model has no engine, and answers nothing."""
    asked = {record["id"]: record for record in by["asked"]}
    for stop in by["stopped"]:
        later = [one["t"] for one in by["started"] if one["model"] == stop["model"] and one["t"] > stop["t"]]
        until = min(later, default=float("inf"))
        for held in by["held"]:
            if held["model"] == stop["model"] and held["t"] < until and last_sign[held["engine"]] > stop["t"]:
                yield f"an engine of a stopped model was there: {held}, {stop}"
        for end in by["ended"]:
            opening = asked.get(end["id"], end)
            while_stopped = opening.get("model") == stop["model"] and stop["t"] < opening["t"] and end["t"] < until
            if while_stopped and (end["end"] == "whole" or runs.get(end["id"])):
                yield f"a stopped model answered: {end}, {stop}"


if __name__ == "__main__":
    wrong = violations(read(Path(sys.argv[1])))
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    sys.exit(bool(wrong))
