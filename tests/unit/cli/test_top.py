"""The live `top`: what keys do, the totals, what fits, and a terminal that is as it was at every end."""

import signal
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from cli.table import cells
from cli.terminal.keys import KeyReader
from cli.top.model import State, picked, press
from cli.top.picture import Data, cut, dry_run, picture_of, totals
from cli.top.rows import SORTED, rows_of
from cli.top.snapshot import Snapshot
from cli.views import read_view
from support.standins.api import deployment, gpu, instance, now_text, refusal, worker
from support.standins.terminal import Terminal, until

NOW = datetime.now(UTC)
JUDGED = {"policy": "stop-idle", "policy_generation": 1, "action": "stop", "since": now_text(5), "acts": "would stop"}


def uuid(letter: str) -> str:
    return f"GPU-{letter * 8}-0000-0000-0000-000000000000"


def claim(of: str, memory_mib: int = 20480) -> dict:
    return {
        "instance": f"{of}-1", "deployment": of, "memory_mib": memory_mib, "exclusive": False, "epoch": 1
    }  # fmt: skip


CHAT, CODE = deployment("chat", ready=1), deployment("code", ready=1)


def objects() -> list[dict]:
    """A cluster, with times as they are now."""
    low = {**JUDGED, "verdict": "busy", "low_since": now_text(245), "due_at": now_text(-415)}
    idle = {**JUDGED, "verdict": "idle", "dry_run": True, "low_since": now_text(725)}
    return [
        worker("gpu-1", gpus=2, memory_mib=163840, claimed_mib=81920),
        worker("gpu-2", "lost", gpus=1, memory_mib=81920, claimed_mib=20480),
        worker("spare", gpus=0, gpus_known=False, memory_mib=0, claimed_mib=0),
        instance(CHAT, 1, worker="gpu-1", gpus=[uuid("a")], utilization=low),
        instance(CODE, 1, worker="gpu-1", gpus=[uuid("b")], utilization=idle),
        instance(CODE, 2, "pending"),
        gpu(uuid("a"), "gpu-1", claims=[claim("chat")], used_mib=10240, claimed_mib=20480, utilization=3.0),
        gpu(uuid("b"), "gpu-1", 1, claims=[claim("code", 61440)], used_mib=61440, claimed_mib=61440, utilization=90.0),
        gpu(uuid("c"), "gpu-2", claims=[claim("long-name")], claimed_mib=20480, model="L4"),
    ]


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
    assert last.lines[-2].split()[1] == "99"
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


AT_80 = """\
2 of 3 workers ready, 3 of 3 GPUs held
100GiB of 240GiB claimed (known of 2 workers)
mean utilization 46% (2 of 3 GPUs), 1 pending
a dry run would stop code-1
WORKER  GPU  STATE  UTIL  USED   CLAIMED  INSTANCE     IDLE FOR  STOPS IN
gpu-1   0    ready  3%    10GiB  20GiB    chat-1       4m        6m
gpu-1   1    ready  90%   60GiB  60GiB    code-1       12m       idle (dry run)
gpu-2   0    lost   -     -      20GiB    long-name-1  -         -
spare   -    ready  -     -      -        -            -         -

rows 1-4 of 4  by WORKER, lowest first  ? keys
"""
AT_120 = """\
2 of 3 workers ready, 3 of 3 GPUs held, 100GiB of 240GiB claimed (known of 2 workers)
mean utilization 46% (2 of 3 GPUs), 1 pending
a dry run would stop code-1
WORKER  GPU  STATE  UTIL  USED   CLAIMED  MEMORY  INSTANCE     DEPLOYMENT  IDLE FOR  STOPS IN
gpu-1   0    ready  3%    10GiB  20GiB    80GiB   chat-1       chat        4m        6m
gpu-1   1    ready  90%   60GiB  60GiB    80GiB   code-1       code        12m       idle (dry run)
gpu-2   0    lost   -     -      20GiB    80GiB   long-name-1  long-name   -         -
spare   -    ready  -     -      -        -       -            -           -         -


rows 1-4 of 4  by WORKER, lowest first  ? keys
"""
AT_200 = """\
2 of 3 workers ready, 3 of 3 GPUs held, 100GiB of 240GiB claimed (known of 2 workers), mean utilization 46% (2 of 3 GPUs), 1 pending
a dry run would stop code-1
WORKER  GPU  ID        MODEL  STATE  UTIL  LAST 10M                        USED   CLAIMED  MEMORY  INSTANCE     DEPLOYMENT  IDLE FOR  STOPS IN
gpu-1   0    aaaaaaaa  H100   ready  3%    ███████████████▁▁▁▁▁▁▁▁▁▁       10GiB  20GiB    80GiB   chat-1       chat        4m        6m
gpu-1   1    bbbbbbbb  H100   ready  90%   ██████████████████████████████  60GiB  60GiB    80GiB   code-1       code        12m       idle (dry run)
gpu-2   0    cccccccc  L4     lost   -                                     -      20GiB    80GiB   long-name-1  long-name   -         -
spare   -    -         -      ready  -                                     -      -        -       -            -           -         -



rows 1-4 of 4  by WORKER, lowest first  ? keys
"""  # noqa: E501 - 200 columns


@pytest.fixture
def cluster(api):
    api.add(CHAT, CODE, *objects())
    api.series = {uuid("a"): [100.0] * 30 + [0.0] * 20 + [None] * 10, uuid("b"): [90.0] * 60}
    return api


def table(terminal: Terminal) -> str:
    """The picture without what names a port and a time."""
    return "\n".join(line.rstrip() for line in terminal.text().splitlines()[1:]) + "\n"


@pytest.mark.parametrize(("columns", "picture"), [(80, AT_80), (120, AT_120), (200, AT_200)])
def test_a_terminal_gets_what_fits_it(cluster, columns, picture):
    with Terminal(cluster, "top", columns=columns, lines=12, NO_COLOR="1") as terminal:
        seen = [""]

        def whole() -> bool:
            seen.append(table(terminal))
            return seen[-1].endswith("? keys\n") and (columns < 200 or "\u2588" in seen[-1])

        until(whole)
        assert seen[-1] == picture
        terminal.type("q")
        assert terminal.end() == 0
    assert terminal.restored()
    assert terminal.text().strip() == ""


def test_keys_through_a_terminal(cluster):
    with Terminal(cluster, "top", columns=120, lines=8) as terminal:
        until(lambda: "by WORKER, lowest first" in terminal.text())
        terminal.type("ss")
        until(lambda: "by UTIL, highest first" in terminal.text())
        terminal.type("S")
        until(lambda: "by UTIL, lowest first" in terminal.text())
        terminal.type("/code")
        until(lambda: "/code_" in terminal.text() and "chat-1" not in terminal.text())
        terminal.type("\x1b")
        until(lambda: "chat-1" in terminal.text() and "? keys" in terminal.text())
        terminal.type("/chat\r?")
        until(lambda: "q quit" in terminal.text())
        terminal.type("?")
        until(lambda: "filter 'chat'" in terminal.text())
        terminal.type("\x1b")
        until(lambda: "rows 1-2 of 4" in terminal.text())
        terminal.type("\x1b[F")
        until(lambda: "rows 3-4 of 4" in terminal.text())
        terminal.resize(60, 20)
        until(lambda: "rows 1-4 of 4" in terminal.text())
        assert all(len(line) <= 60 for line in terminal.text().splitlines())
        assert all(int(query.get("limit", "1")) <= 1000 for _, _, query, _ in cluster.asked)  # else the API refuses
        terminal.type("q")
        assert terminal.end() == 0
    assert terminal.restored()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP)],
)
def test_a_signal_puts_the_terminal_back(cluster, number, code):
    with Terminal(cluster, "top", columns=80, lines=10) as terminal:
        until(lambda: "? keys" in terminal.text())
        terminal.process.send_signal(number)
        assert terminal.end() == code
    assert terminal.restored()


def test_what_cannot_be_read_is_told_and_read_again(cluster):
    with Terminal(cluster, "top", columns=120, lines=10) as terminal:
        until(lambda: "? keys" in terminal.text())
        cluster.refuse = unavailable
        until(lambda: "the database is unavailable; retrying, last read at" in terminal.text())
        cluster.refuse = None
        until(lambda: "retrying" not in terminal.text())
        cluster.objects["workers"]["gpu-1"]["status"]["memory_mib"] = "much"
        until(lambda: "cannot read the WorkerView" in terminal.text())
        terminal.type("q")
        assert terminal.end() == 0
    assert terminal.restored()


async def unavailable(_request):
    return refusal(503, "database_unavailable", "the database is unavailable")


def test_a_crash_puts_the_terminal_back(cluster):
    with Terminal(cluster, "top", columns=120, lines=10) as terminal:
        until(lambda: "? keys" in terminal.text())
        cluster.refuse = no_list  # more wrong than the client foresees
        assert terminal.end() == 1
    assert terminal.restored()
    assert "RecursionError" in terminal.text()


async def no_list(_request):
    return web.Response(text="[" * 100_000, content_type="application/json")


def test_ctrl_z_gives_the_terminal_back_and_the_view_goes_on(cluster):
    """A session of its own has no shell, so the kernel ignores the stop itself, and the view begins anew at once."""
    with Terminal(cluster, "top", columns=80, lines=10) as terminal:
        until(lambda: "? keys" in terminal.text())
        terminal.process.send_signal(signal.SIGTSTP)
        until(lambda: terminal.printed.count(b"\x1b[?1049h") == 2 and "? keys" in terminal.text())
        assert terminal.printed.count(b"\x1b[?1049l") == 1
        terminal.type("q")
        assert terminal.end() == 0
    assert terminal.restored()


def test_a_refusal_needs_no_screen(cluster):
    cluster.key = "another"
    with Terminal(cluster, "top", columns=80, lines=10) as terminal:
        assert terminal.end() == 1
    assert b"\x1b[?1049h" not in terminal.printed


def test_the_view_of_one_worker(cluster):
    with Terminal(cluster, "top", "--worker", "gpu-1", columns=80, lines=10) as terminal:
        until(lambda: "worker gpu-1 of http" in terminal.text())
        assert "pending" not in terminal.text()
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
