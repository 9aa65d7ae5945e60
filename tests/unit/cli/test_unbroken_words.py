"""`describe` and `plan` on a terminal of 80 columns: no line is wider, and no word is broken."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.objects.views import read_view
from cli.printing.table import Table, cells, filled, table_lines
from cli.text.details import describe, draw_window
from cli.text.gpu_names import GpuNames
from cli.text.page import Exact, Field, Page
from cli.transport.paths import parse
from schemas.api.deployments import DeploymentView
from schemas.api.events import EventView
from schemas.api.gpus import GpuView
from schemas.api.history import UtilizationView
from schemas.api.instances import InstanceView
from schemas.api.workers import WorkerView
from support.builders.api_objects import deployment, gpu, instance, now_text, worker

WIDTH = 80
NAME = st.text("abcdefghij0123456789-", min_size=1, max_size=63).map(lambda text: f"n{text[:61]}x")
WORD = st.text(st.characters(categories=("L", "N"), exclude_characters="│"), min_size=1, max_size=30)
SENTENCE = st.lists(WORD, min_size=1, max_size=40).map(" ".join)
UUID = st.uuids().map(lambda found: f"GPU-{found}")
DRAWN = re.compile("[│▁▂▃▄▅▆▇█┄]")


@st.composite
def described(draw: st.DrawFn) -> tuple[Any, dict[str, Any], list[str]]:
    """A view, what `describe` shows with it, and words that it shows."""
    name, host, uuid = draw(NAME), draw(NAME), draw(UUID)
    message, now = draw(SENTENCE), datetime.now(UTC)
    owner = deployment(name, "degraded", message=message, reason="gpu_unhealthy")
    claim = {"device": uuid, "worker": host, "memory_mib": 81920, "exclusive": True, "epoch": 1}
    claims = [{**claim, "health": "unhealthy", "health_reason": message}]
    one = instance(owner, 1, "unhealthy", worker=host, gpus=[uuid], message=message, claims=claims)
    on = gpu(uuid, host, health="unhealthy", health_reason=message, claims=[{**claim, "instance": f"{name}-1", "deployment": name}])  # fmt: skip  # noqa: E501
    trouble = {
        "type": "GpusHealthy",
        "status": "false",
        "reason": "gpu_unhealthy",
        "message": message,
        "since": now_text(),
    }
    host_view = worker(host, conditions=[trouble], labels={"zone": name})
    event = {"id": 1, "at": now_text(), "reason": "gpu_unhealthy", "message": message, "objects": [],
             "subjects": [{"kind": "instance", "name": f"{name}-1", "uid": "u"}], "actor": f"key:{name}"}  # fmt: skip
    views = {
        "deployment": (DeploymentView, owner, [name]), "instance": (InstanceView, one, [f"{name}-1", uuid, host]),
        "worker": (WorkerView, host_view, [host]), "gpu": (GpuView, on, [uuid, host, name]),
    }  # fmt: skip
    model, raw, words = views[draw(st.sampled_from(sorted(views)))]
    series = [{"gpu": uuid, "worker": host, "values": draw(st.lists(st.floats(0, 100), max_size=200))}]
    window = {"until": now_text(), "window_s": 600, "slot_s": 3, "series": series}
    more = {
        "instances": [parse(InstanceView, one)], "gpus": [parse(GpuView, on)], "events": [parse(EventView, event)],
        "graphs": draw_window(parse(UtilizationView, window)), "now": now,
    }  # fmt: skip
    return parse(model, raw), more, [*words, *message.split()]


@given(described(), st.booleans(), st.booleans())
def test_no_line_of_describe_is_wider_and_no_word_is_broken(
    found: tuple[Any, dict[str, Any], list[str]], wide: bool, named: bool
) -> None:
    view, more, words = found
    uuid = next((word for word in words if word.startswith("GPU-")), "")
    gpus = GpuNames(lambda: {uuid: "gpu-a1:0"} if named else {})
    text = describe(view, **more, page=Page(WIDTH, wide=wide, gpus=gpus))
    longest = max(cells(word) for word in text.split())
    assert all(cells(line) <= max(WIDTH, longest) for line in text.splitlines())
    shown = set(re.split(r"[\s,:;()]+", text))
    for word in words:
        form = gpus.in_text(word)
        assert word in text.split() or form in shown or any(form in other for other in text.split())


@given(SENTENCE, st.integers(20, 120), st.integers(0, 12))
def test_filled_lines_have_the_words_in_their_order(text: str, width: int, indent: int) -> None:
    lines = filled(text, width, indent)
    assert " ".join(lines).split() == text.split()
    assert all(cells(line) <= width or len(line.split()) == 1 for line in lines)


@given(st.lists(st.tuples(st.integers(1, 5), NAME), min_size=1, max_size=20), st.integers(10, 80), st.integers(0, 9))
def test_filled_lines_keep_the_spaces_between_their_words(
    words: list[tuple[int, str]], width: int, indent: int
) -> None:
    text = "".join(" " * spaces + word for spaces, word in words)
    lines = filled(text, width, indent)
    for n, line in enumerate(lines):
        assert (line if n == 0 and len(text) <= width else line.strip()) in text


def test_a_title_and_an_exact_line_keep_their_spaces() -> None:
    page = Page(width=50)
    title = Field("Reason:       ", "a reason that is much longer than the line in which it begins")
    command = Exact("""  command: bash -c 'printf  "a   b" && exec server --flag x'""")
    first, *_ = page.lines([title])
    assert first.startswith("Reason:       a reason")
    first, *_ = page.lines([command])
    assert first.startswith("""  command: bash -c 'printf  "a   b" &&""")


@given(st.lists(st.tuples(NAME, NAME, SENTENCE), min_size=1, max_size=4), st.integers(64, 120))
def test_a_table_that_does_not_fit_has_a_line_for_each_cell(rows: list[tuple[str, str, str]], width: int) -> None:
    lines = table_lines(Table(["NAME", "OTHER", "WHY"], rows), width, stacks=True)
    text = "\n".join(lines)
    widest = max(cells(word) for word in text.split())
    assert all(cells(line) <= max(width, widest) for line in lines)
    assert all(word in text.split() for row in rows for word in (*row[:2], *row[2].split()))


def plan_of(name: str, message: str, uuid: str) -> dict[str, Any]:
    item = {"deployment": name, "instance": 0, "fits": True, "worker": name, "gpus": [uuid], "memory_mib_per_gpu": 1}
    pending = {"workers": 1, "message": message, "advice": [f"{message} {message}"]}
    return {
        "items": [item, {"deployment": name, "instance": 1, "fits": False, "explain": pending}],
        "changes": {name: "replace"}, "rollouts": {name: message},
        "field_changes": {name: [{"field": "resources.gpus", "old": message, "new": None, "effect": "replaces"}]},
        "policy_stops": {"stop": 1, "items": [{"deployment": name, "action": "stop", "message": message}]},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["chat", "n" * 63])
@pytest.mark.parametrize("words", [3, 60])
def test_plan_on_a_terminal_of_80_columns(gpuward, api, monkeypatch, name, words):
    message, uuid = " ".join(["because"] * words), "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    api.canned["plan"] = plan_of(name, message, uuid)
    api.add(gpu(uuid, name))
    monkeypatch.setattr("cli.printing.output.terminal_width", lambda: WIDTH)
    manifest = f"kind: Deployment\nname: {name}\nengine: simulated\n"
    done = gpuward("plan", "-f", "-", stdin=manifest, NO_COLOR="1")
    assert done.exit_code == 1
    longest = max(len(word) for word in done.stdout.split())
    assert all(len(line) <= max(WIDTH, longest) for line in done.stdout.splitlines())
    assert f"{name}:0" in done.stdout
    assert set(re.findall(r"becau\w*|\w*ause", done.stdout)) == {"because"}


def test_without_a_terminal_lines_are_as_long_as_their_text(gpuward, api):
    message = "why " * 100 + "end"
    api.add(deployment("chat", "degraded", message=message))
    assert message in gpuward("describe", "deployment", "chat").stdout


def test_views_of_the_builders_are_read() -> None:
    assert read_view("WorkerView", worker("a")).name == "a"
