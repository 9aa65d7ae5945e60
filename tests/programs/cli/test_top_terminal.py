"""The live `top` in a terminal, which is as it was at every end."""

import signal

import pytest
from aiohttp import web

from support.builders.shown_cluster import CHAT, CODE, objects, uuid
from support.standins.api import refusal
from support.standins.terminal import Terminal, until

AT_80 = """\
2 of 3 workers ready, 3 of 3 GPUs held
100GiB of 240GiB claimed (known of 2 workers)
mean utilization 46% (2 of 3 GPUs), 1 pending
a dry run would stop code-1
GPU      STATE  UTIL  USED   CLAIMED  INSTANCE     IDLE FOR  STOPS IN
gpu-1:0  ready  3%    10GiB  20GiB    chat-1       4m        6m
gpu-1:1  ready  90%   60GiB  60GiB    code-1       12m       idle (dry run)
gpu-2:0  lost   -     -      20GiB    long-name-1  -         -
spare:-  ready  -     -      -        -            -         -

rows 1-4 of 4  by WORKER, lowest first  ? keys
"""
AT_120 = """\
2 of 3 workers ready, 3 of 3 GPUs held, 100GiB of 240GiB claimed (known of 2 workers)
mean utilization 46% (2 of 3 GPUs), 1 pending
a dry run would stop code-1
GPU      STATE  UTIL  USED   CLAIMED  MEMORY  INSTANCE     DEPLOYMENT  IDLE FOR  STOPS IN
gpu-1:0  ready  3%    10GiB  20GiB    80GiB   chat-1       chat        4m        6m
gpu-1:1  ready  90%   60GiB  60GiB    80GiB   code-1       code        12m       idle (dry run)
gpu-2:0  lost   -     -      20GiB    80GiB   long-name-1  long-name   -         -
spare:-  ready  -     -      -        -       -            -           -         -


rows 1-4 of 4  by WORKER, lowest first  ? keys
"""
AT_200 = """\
2 of 3 workers ready, 3 of 3 GPUs held, 100GiB of 240GiB claimed (known of 2 workers), mean utilization 46% (2 of 3 GPUs), 1 pending
a dry run would stop code-1
WORKER  GPU      ID        MODEL  STATE  UTIL  LAST 10M                        USED   CLAIMED  MEMORY  INSTANCE     DEPLOYMENT  IDLE FOR  STOPS IN
gpu-1   gpu-1:0  aaaaaaaa  H100   ready  3%    ███████████████▁▁▁▁▁▁▁▁▁▁       10GiB  20GiB    80GiB   chat-1       chat        4m        6m
gpu-1   gpu-1:1  bbbbbbbb  H100   ready  90%   ██████████████████████████████  60GiB  60GiB    80GiB   code-1       code        12m       idle (dry run)
gpu-2   gpu-2:0  cccccccc  L4     lost   -                                     -      20GiB    80GiB   long-name-1  long-name   -         -
spare   spare:-  -         -      ready  -                                     -      -        -       -            -           -         -



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


def test_what_is_printed_once_has_the_colours_of_verdicts(cluster):
    with Terminal(cluster, "top", "--once", columns=120, lines=20) as terminal:
        assert terminal.end() == 0
    assert b"\x1b[32m4m\x1b[0m" in terminal.printed  # busy
    assert b"\x1b[31midle (dry run)\x1b[0m" in terminal.printed
    with Terminal(cluster, "top", "--once", columns=120, lines=20, NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    assert b"\x1b" not in terminal.printed


def test_the_view_of_one_worker(cluster):
    with Terminal(cluster, "top", "--worker", "gpu-1", columns=80, lines=10) as terminal:
        until(lambda: "worker gpu-1 of http" in terminal.text())
        assert "pending" not in terminal.text()
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
