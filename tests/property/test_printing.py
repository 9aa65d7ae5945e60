"""No text from elsewhere can control the terminal or forge a line: every printer of the command line and the logs."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from cli.objects.kind import table_of
from cli.objects.kinds import EVENTS, WORKERS
from cli.printing.output import Format, print_data, print_table
from cli.printing.table import table_lines
from cli.text.details import describe
from cli.text.formatting import printable
from cli.verbs.logs import LogText
from schemas.api.events import EventView
from schemas.api.view import from_plain
from schemas.api.workers import WorkerView
from schemas.printing import block, escape_log_event, one_line
from support.profiles import examples

NOW = datetime(2026, 11, 22, tzinfo=UTC)
# What terminals obey: C0 and C1 controls, delete, and marks that turn the direction of text.
DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile("\x1b\\[[0-9;:]{0,32}m")
text = st.text() | st.lists(
    st.sampled_from(["\x1b[31m", "\x1b]0;t\x07", "\x9b2J", "\r", "\n", "\x1b", "\u202e", "\x00", "ok", "ä", "\x7f"])
).map("".join)


def shown(print_it: object) -> str:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        print_it()  # type: ignore[operator]
    return out.getvalue()


@given(text)
@examples()
def test_a_line_stays_one_line(value: str) -> None:
    assert one_line(value).isprintable()
    assert printable(value) == one_line(value)
    assert not DANGEROUS.search(block(value))
    if value.isprintable():
        assert one_line(value) == value


@given(text)
@examples()
def test_tables_and_descriptions_of_objects_are_safe(value: str) -> None:
    event = EventView(id=1, at=NOW, reason=value, message=value, objects=[value], actor=value, request_id=value)
    worker = from_plain(WorkerView, {
        "name": value, "uid": "u", "created_at": NOW, "spec": {},
        "status": {"phase": "ready", "state": "ready", "reason": value, "hostname": value, "os": value, "arch": value,
                   "driver": value, "agent_version": value, "labels": {value: value}, "proxy_address": value,
                   "conditions": [{"type": value, "status": "false", "reason": value, "message": value}]},
    })  # fmt: skip
    for kind, view in ((EVENTS, event), (WORKERS, worker)):
        table = table_of(kind, [view], NOW, wide=True)
        assert not DANGEROUS.search(shown(lambda t=table: print_table(t, empty="none")))
        for width in (10, 80, 200):
            assert not DANGEROUS.search("\n".join(table_lines(table, width)))
    told = describe(worker, instances=[], gpus=[], events=[event], graphs=[], now=NOW)
    assert not DANGEROUS.search(told)


@given(text)
@examples()
def test_output_for_programs_is_safe_and_means_the_same(value: str) -> None:
    data = {"message": value, value: [value]}
    for in_a_row in (False, True):
        printed = shown(lambda row=in_a_row: print_data(data, Format.JSON, in_a_row=row))
        assert not DANGEROUS.search(printed)
        assert json.loads(printed) == data


@given(st.lists(st.binary() | text.map(lambda t: t.encode("utf-8", "replace"))), st.booleans())
@examples()
def test_logs_of_engines_are_safe_however_they_are_cut(chunks: list[bytes], colours: bool) -> None:
    log = LogText(colours=colours)
    parts = [log.feed(chunk) for chunk in chunks] + [log.feed(b"", last=True)]
    printed = "".join(parts)
    assert not DANGEROUS.search(COLOUR.sub("", printed) if colours else printed)
    whole = LogText(colours=colours)
    assert printed == whole.feed(b"".join(chunks), last=True)


@pytest.mark.parametrize(
    ("colours", "printed"),
    [
        (True, "\x1b[1;31mred\x1b[0m \\x1b[2J ü\tx\n50%\n100%\n"),
        (False, "\\x1b[1;31mred\\x1b[0m \\x1b[2J ü\tx\n50%\n100%\n"),
    ],
)
def test_colours_pass_on_a_terminal_only(colours: bool, printed: str) -> None:
    raw = "\x1b[1;31mred\x1b[0m \x1b[2J ü\tx\r\n50%\r100%\r\n".encode()
    log = LogText(colours=colours)
    assert "".join(log.feed(raw[n : n + 1]) for n in range(len(raw))) + log.feed(b"", last=True) == printed


@given(text)
@pytest.mark.parametrize("renderer", [structlog.dev.ConsoleRenderer(colors=False), structlog.processors.JSONRenderer()])
@examples()
def test_a_line_of_the_log_is_one_line(renderer: structlog.typing.Processor, value: str) -> None:
    event = escape_log_event(None, "info", {"event": value, "worker": value, "n": 1})
    printed = str(renderer(None, "info", event))
    assert not DANGEROUS.search(printed)
    assert "\n" not in printed
