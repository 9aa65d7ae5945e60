"""The health of a gateway of several processes: the others answer, are silent, lag, or are asked by many at once."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from gateway.control_plane.reverse_proxy import Controller
from gateway.reporting.health import Health
from http1.fetch import FetchError

FINE = orjson.dumps({"lag_s": 0.0, "problem": ""})


class Answer:
    """What one request is answered."""

    def __init__(self) -> None:
        self.status = 0
        self.body: dict[str, Any] = {}

    def start(self, status: int, _fields: object) -> None:
        self.status = status

    async def send(self, data: bytes) -> None:
        self.body = orjson.loads(data)


def health(others: Mapping[int, bytes | None], asked: list[str], monkeypatch: pytest.MonkeyPatch) -> Health:
    async def ask(question: str) -> Mapping[int, bytes | None]:
        asked.append(question)
        await asyncio.sleep(0)
        return others

    async def fetch(*_: object) -> tuple[Any, bytes]:
        return SimpleNamespace(status=200), b'{"ready": true, "checks": {}}'

    monkeypatch.setattr(Controller, "fetch", fetch)
    return Health(
        Controller("/nowhere", "", SimpleNamespace(), most_strangers=1),  # type: ignore[arg-type]  # nothing connects
        SimpleNamespace(problem=""),  # type: ignore[arg-type]  # nothing else of it is asked
        draining=lambda: False,
        loop_lag_s=lambda: 0.1,
        registry=CollectorRegistry(),
        number=1,
        others=ask,
    )


@pytest.mark.parametrize(
    ("others", "ready", "why", "alive", "word"),
    [
        ({}, 200, "", 200, None),
        ({0: FINE}, 200, "", 200, None),
        ({0: FINE, 2: None}, 503, "process 3: it does not answer", 503, "process_silent"),
        (
            {0: orjson.dumps({"lag_s": 9.0, "problem": "no model is known yet"})},
            503, "process 1: no model is known yet", 503, "lagging",
        ),
    ],
)  # fmt: skip
async def test_one_answer_for_all(
    others: Mapping[int, bytes | None], ready: int, why: str, alive: int, word: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[str] = []
    of, answer = health(others, asked, monkeypatch), Answer()
    head: Any = SimpleNamespace(path=b"/readyz", target=b"/readyz", fields=[])
    await of._ready(head, [], answer)  # type: ignore[arg-type]  # stands in for a streamed answer
    assert (answer.status, answer.body["checks"]["gateway"]["message"]) == (ready, why)
    await of._alive(head, [], answer)  # type: ignore[arg-type]  # as above
    assert (answer.status, answer.body.get("status")) == (alive, word)


async def test_the_controller_gets_the_whole_question(monkeypatch: pytest.MonkeyPatch) -> None:
    targets: list[bytes] = []
    of, answer = health({}, [], monkeypatch), Answer()
    fetched = Controller.fetch

    async def fetch(controller: Any, target: bytes, *rest: Any) -> Any:
        targets.append(target)
        return await fetched(controller, target, *rest)

    monkeypatch.setattr(Controller, "fetch", fetch)
    head: Any = SimpleNamespace(path=b"/readyz", target=b"/readyz?exclude=ledger", fields=[])
    await of._ready(head, [], answer)  # type: ignore[arg-type]  # stands in for a streamed answer
    assert targets == [b"/readyz?exclude=ledger"]


@pytest.mark.parametrize(("question", "status"), [
    ("", 503), ("?exclude=ledger", 503), ("?exclude=controller", 200), ("?exclude=ledger,controller", 200),
    ("?exclude=ledger&exclude=controller", 200), ("?exclude=controllers", 503), ("?controller", 503),
])  # fmt: skip
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_probe_of_the_gateway_leaves_the_controller_out(
    question: str, path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, answer = health({}, [], monkeypatch), Answer()

    async def fetch(*_: object) -> Any:
        raise FetchError("no controller")

    monkeypatch.setattr(Controller, "fetch", fetch)
    head: Any = SimpleNamespace(path=path.encode(), target=f"{path}{question}".encode(), fields=[])
    await (of._alive if path == "/healthz" else of._ready)(head, [], answer)  # type: ignore[arg-type]  # as above
    assert answer.status == status
    if status == 200:
        assert answer.body in ({"status": "ok"}, {"ready": True, "checks": {"gateway": {"ok": True, "message": ""}}})


async def test_a_process_that_does_not_answer_counts_without_the_controller_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, answer = health({0: None}, [], monkeypatch), Answer()
    head: Any = SimpleNamespace(path=b"/healthz", target=b"/healthz?exclude=controller", fields=[])
    for asked in (of._alive, of._ready):
        await asked(head, [], answer)  # type: ignore[arg-type]  # as above
        assert answer.status == 503


async def test_many_questions_at_once_ask_the_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    of = health({0: FINE}, asked, monkeypatch)
    head: Any = SimpleNamespace(path=b"/readyz", target=b"/readyz", fields=[])
    answers = [Answer() for _ in range(50)]
    await asyncio.gather(*(of._ready(head, [], answer) for answer in answers))  # type: ignore[arg-type]  # as above
    assert {answer.status for answer in answers} == {200}
    assert len(asked) == 1


@pytest.mark.parametrize(("address", "fields", "reads", "told"), [
    ("", [], False, True), ("127.0.0.1", [], False, True), ("::1", [], False, True), ("192.0.2.7", [], True, True),
    ("192.0.2.7", [], False, False), ("127.0.0.1", [(b"x-forwarded-for", b"192.0.2.7")], False, False),
    ("127.0.0.1", [(b"via", b"1.1 proxy")], False, False), ("nonsense", [], False, False),
])  # fmt: skip
async def test_a_stranger_gets_no_messages(
    address: str, fields: list[tuple[bytes, bytes]], reads: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor from a controller of the version before, which names them to every gateway."""
    of, answer = health({2: None}, [], monkeypatch), Answer()

    async def fetch(*_: object) -> Any:
        checks = {"database": {"ok": False, "message": "at 10.0.0.7"}, "odd": "at 10.0.0.7"}
        return SimpleNamespace(status=503), orjson.dumps({"ready": False, "checks": checks, "more": "at 10.0.0.7"})

    async def reader(_head: object) -> bool:
        return reads

    monkeypatch.setattr(Controller, "fetch", fetch)
    monkeypatch.setattr(of, "_reader", reader)
    head: Any = SimpleNamespace(path=b"/readyz", target=b"/readyz", fields=fields)
    await of._ready(head, [], answer, address)  # type: ignore[arg-type]  # stands in for a streamed answer
    assert (answer.status, answer.body["ready"]) == (503, False)
    assert {name: check["ok"] for name, check in answer.body["checks"].items() if name != "odd"} == {
        "database": False,
        "gateway": False,
    }
    shown = str(answer.body)
    assert ("10.0.0.7" in shown, "process 3" in shown) == (told, told)
