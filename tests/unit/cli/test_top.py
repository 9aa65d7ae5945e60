"""The live `top` without a terminal: keys, what they do, the totals, and what fits into a picture."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.objects.views import read_view
from cli.printing.table import cells
from cli.terminal.keys import KeyReader
from cli.top.model import State, picked, press
from cli.top.picture import Data, cut, dry_run, picture_of, totals
from cli.top.rows import SORTED, rows_of
from cli.top.snapshot import Snapshot
from cli.verbs.top import gpu_table
from support.builders.api_objects import deployment, gpu, instance, now_text, worker
from support.builders.shown_cluster import objects, uuid

NOW = datetime.now(UTC)
CLUSTER = objects()
VIEWS = {"Worker": "WorkerView", "Gpu": "GpuView", "Instance": "InstanceView"}


def snapshot(*raws) -> Snapshot:
    views = [read_view(VIEWS[raw["kind"]], raw) for raw in raws]
    workers, gpus, instances = ([one for one in views if one.kind == kind] for kind in ("Worker", "Gpu", "Instance"))
    return Snapshot(
        "http://x", NOW, 600.0, workers, gpus, max(len(gpus), sum(one.status.gpus for one in workers)),
        {one.name: one for one in instances}, pending=sum(one.status.phase == "pending" for one in instances),
    )  # fmt: skip


def data(*raws, note: str = "") -> Data:
    found = snapshot(*raws)
    return Data(found, rows_of(found), {}, note)


def many(number: int) -> Data:
    return data(worker("w", gpus=number), *(gpu(f"GPU-{n:08}-x", "w", n, utilization=float(n)) for n in range(number)))


def after(state: State, keys: list[str], *, rows: int = 100, page: int = 10) -> State:
    for key in keys:
        state = press(state, key, rows=rows, page=page)
    return state


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q/\x7f\r", ["q", "/", "backspace", "enter"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["up", "down", "page-up", "page-down", "home", "end"]),
        ("\u6a21a\u0301".encode(), ["\u6a21", "a", "\u0301"]),
        (b"\xffa\x1b[15~\x1b[1;5Cb\x02c", ["a", "b", "c"]),  # not text, F5, Ctrl-Right and Ctrl-B mean nothing
    ],
)
def test_keys_are_read_however_they_are_cut(sent, keys):
    for size in (1, 2, len(sent)):
        reader = KeyReader()
        assert [key for at in range(0, len(sent), size) for key in reader.feed(sent[at : at + size])] == keys
        assert not reader.undecided


def test_an_escape_alone_is_a_key_once_nothing_follows():
    reader = KeyReader()
    assert reader.feed(b"\x1b") == []
    assert reader.undecided
    assert reader.settle() == ["escape"]
    assert reader.feed(b"\x1b[" + b"1" * 100) != []  # no sequence is so long


@given(st.lists(st.binary(max_size=40)))
def test_no_bytes_break_the_reader(parts: list[bytes]) -> None:
    reader = KeyReader()
    for part in parts:
        keys = reader.feed(part)
        assert all((len(key) == 1 and key.isprintable()) or key.isascii() for key in keys)
    reader.settle()
    assert not reader.undecided


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        (["down", "down", "up"], 1), (["up"], 0), (["page-down", "page-down"], 20), (["end"], 90),
        (["end", "down", "page-up"], 80), (["end", "home"], 0), (["end", "s"], 0), (["end", "/", "x"], 0),
    ],
)  # fmt: skip
def test_keys_scroll_within_the_rows(keys, first):
    assert after(State(), keys).first == first
    assert after(State(first=50), ["down"], rows=3).first == 0


def test_a_filter_is_typed_kept_and_cleared():
    typed = after(State(), ["/", "c", "q", "backspace", "s"])
    assert (typed.filter, typed.typing, typed.ended, typed.sort) == ("cs", True, False, 0)
    assert after(typed, ["enter"]) == State(filter="cs")
    assert after(typed, ["escape"]) == after(typed, ["enter", "escape"]) == State()
    assert after(typed, ["ctrl-u"]).filter == ""
    assert len(after(State(), ["/", *"x" * 1000]).filter) == 64
    assert after(typed, ["enter", "q"]).ended
    assert after(typed, ["ctrl-c"]).ended


def test_sorting_goes_round_and_reverses():
    states = [after(State(), ["s"] * n) for n in range(len(SORTED) + 1)]
    assert len(set(states)) == len(SORTED)
    assert states[-1] == states[0]
    assert after(State(), ["S", "S"]) == State()
    assert not after(State(), ["S", "s"]).reverse


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sort", range(len(SORTED)))
def test_rows_are_in_order_and_unknown_comes_last(sort, reverse):
    rows = rows_of(snapshot(*CLUSTER))
    assert len(rows) == 4
    found = [row.orders[sort] for row in picked(State(sort=sort, reverse=reverse), rows)]
    known = [value for value in found if value is not None]
    assert found == [*known, *[None] * (len(found) - len(known))]
    assert known == sorted(known, reverse=SORTED[sort].falling != reverse)


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("", "abc"), ("GPU-2", "c"), ("chat", "a"), ("c gpu-2", "c"), ("gpu-1 gpu-2", ""), ("bbbbbbbb", "b"),
        ("l4", "c"), ("none", ""),
        ("h100", "ab"), ("code-1", "b"),
    ],
)  # fmt: skip
def test_a_filter_looks_at_workers_gpus_models_and_deployments(words, gpus):
    found = [row.gpu for row in picked(State(filter=words), rows_of(snapshot(*CLUSTER)))]
    assert [one for one in found if one] == [uuid(letter) for letter in gpus]


def test_totals_are_of_all_and_unknown_is_not_zero():
    assert totals(snapshot(*CLUSTER)) == [
        "2 of 3 workers ready", "3 of 3 GPUs held", "100GiB of 240GiB claimed (known of 2 workers)",
        "mean utilization 46% (2 of 3 GPUs)", "1 pending",
    ]  # fmt: skip
    none = totals(snapshot(CLUSTER[2]))
    assert none[1:4] == ["- of - GPUs held", "- of - claimed", "mean utilization - (0 of - GPUs)"]
    assert totals(replace(snapshot(*CLUSTER), gpus_in_all=9))[1] == "- of 9 GPUs held"
    assert len(totals(replace(snapshot(*CLUSTER), pending=None))) == 4
    assert totals(snapshot())[1] == "0 of 0 GPUs held"


def test_what_a_dry_run_would_stop_is_said():
    assert dry_run(snapshot(*CLUSTER)) == "a dry run would stop code-1"
    assert "idle (dry run)" in "\n".join(picture_of(State(), data(*CLUSTER), (200, 24)).lines)
    told = {
        **CLUSTER[4],
        "status": {**CLUSTER[4]["status"], "utilization": {**CLUSTER[4]["status"]["utilization"], "action": "notify"}},
    }
    assert dry_run(snapshot(told)) == ""


def test_the_rows_that_fit_are_shown_and_scrolling_moves_no_column():
    picture = picture_of(State(), many(100), (100, 24))
    assert (picture.rows, len(picture.lines)) == (100, 24)
    last = picture_of(State(first=1000), many(100), (100, 24))
    assert last.lines[-1].startswith(f"rows {101 - last.page}-100 of 100")
    assert last.lines[-2].split()[1] == "w:99"
    title = next(line for line in picture.lines if line.startswith("WORKER"))
    assert title in last.lines


def test_graphs_are_asked_for_where_they_are_shown():
    assert len(picture_of(State(), many(100), (200, 24)).graphs) == picture_of(State(), many(100), (200, 24)).page
    assert picture_of(State(), many(100), (40, 24)).graphs == []


def test_the_line_for_keys_says_what_is_typed_and_how_rows_are_sorted():
    def last(state: State) -> str:
        return picture_of(state, data(*CLUSTER), (80, 24)).lines[-1]

    assert last(State()) == "rows 1-4 of 4  by WORKER, lowest first  ? keys"
    assert last(State(sort=2)) == "rows 1-4 of 4  by UTIL, highest first  ? keys"
    assert last(State(filter="chat")) == "rows 1-1 of 1  filter 'chat'  by WORKER, lowest first  ? keys"
    assert last(State(filter="nope")).startswith("rows 0 of 4")
    assert last(State(filter="ch", typing=True)).startswith("/ch_")
    assert last(State(help=True)).startswith("q quit, s next sort")
    assert len(last(State(help=True))) <= 80


@given(st.integers(1, 220), st.integers(1, 50), st.booleans(), st.sampled_from(["", "chat", "x" * 64, "\u6a21"]))
def test_no_line_is_broken(columns: int, lines: int, colours: bool, words: str) -> None:
    told = data(*CLUSTER, worker("\u6a21" * 30, "lost"), note="the controller does not answer; retrying " * 3)
    picture = picture_of(State(filter=words), told, (columns, lines), colours=colours)
    assert len(picture.lines) <= lines
    plain = [line.replace("\x1b[1m", "").replace("\x1b[32m", "").replace("\x1b[31m", "") for line in picture.lines]
    assert all(cells(line.replace("\x1b[33m", "").replace("\x1b[0m", "")) <= columns for line in plain)


def test_a_line_is_cut_before_its_end_and_keeps_its_colours_whole():
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdef", 5) == "abcd\u2026"
    assert cut("\u6a21\u6a21\u6a21", 5) == "\u6a21\u6a21\u2026"
    assert cut("a\x1b[31mbcdef\x1b[0m", 4) == "a\x1b[31mbc\u2026\x1b[0m"
    assert cut("a\x1b[31mb\x1b[0m", 2) == "a\x1b[31mb\x1b[0m"


def test_a_gpu_is_one_row_with_all_its_holders():
    claims = [
        {"instance": f"{name}-1", "deployment": name, "memory_mib": 1024, "exclusive": False, "epoch": 1}
        for name in ("train", "chat", "embed")
    ]
    found = rows_of(snapshot(worker("gpu-9", gpus=1), gpu(uuid("d"), "gpu-9", claims=claims)))
    (row,) = found
    assert "gpu-9:0" in row.cells
    assert "chat-1, embed-1 and 1 more" in row.cells
    assert [len(picked(State(filter=name), found)) for name in ("train", "embed-1", "gpu-9:0", "other")] == [1, 1, 1, 0]


def test_a_removed_gpu_and_its_successor_are_told_apart():
    found = rows_of(snapshot(worker("gpu-9", gpus=1), gpu(uuid("d"), "gpu-9", present=False), gpu(uuid("e"), "gpu-9")))
    assert [row.gpu for row in found if "gpu-9:0" in row.cells] == [uuid("e")]


def test_the_printed_table_has_one_row_for_each_gpu_with_every_holder():
    claims = [
        {"instance": f"{name}-1", "deployment": name, "memory_mib": 1024, "exclusive": False, "epoch": 1}
        for name in ("train", "chat")
    ]
    table = gpu_table(
        snapshot(worker("gpu-9", gpus=1), gpu(uuid("d"), "gpu-9", claims=claims), gpu(uuid("e"), "gpu-9", 1))
    )
    assert [row[1] for row in table.rows] == ["gpu-9:0", "gpu-9:1"]
    assert table.rows[0][5:7] == ["chat-1, train-1", "chat, train"]
    assert table.rows[1][5:7] == ["-", "-"]


def test_the_verdict_is_of_the_holder_that_stops_first():
    soon = {"policy": "p", "policy_generation": 1, "action": "stop", "since": now_text(5), "verdict": "busy",
            "low_since": now_text(100), "due_at": now_text(-30)}  # fmt: skip
    late = {**soon, "due_at": now_text(-3000)}
    chat, embed = deployment("chat"), deployment("embed")
    claims = [
        {"instance": f"{name}-1", "deployment": name, "memory_mib": 1024, "exclusive": False, "epoch": 1}
        for name in ("chat", "embed")
    ]
    found = snapshot(
        worker("gpu-9", gpus=1),
        gpu(uuid("d"), "gpu-9", claims=claims),
        instance(chat, utilization=late),
        instance(embed, utilization=soon),
    )
    (gpu_row,) = gpu_table(replace(found, now=datetime.now(UTC))).rows  # not the time of the import
    assert gpu_row[-1].endswith("s"), "not the 50 minutes of the other"
