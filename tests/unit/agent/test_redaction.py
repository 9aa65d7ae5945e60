"""No value of a secret is shown, wherever a text is cut."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.logs.log_index import LogIndex
from agent.logs.plain_log import PlainLog
from agent.logs.redaction import LEAST, RedactedStream, Redactor
from agent.logs.timed_log import TimedLog
from agent.processes.folders import InstanceFolders
from agent.state.process_records import ProcessKey

TOKEN = "hf_abcdefgh"
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----"


def streamed(redactor: Redactor, parts: list[bytes]) -> bytes:
    stream = RedactedStream(redactor)
    return b"".join(map(stream.feed, parts)) + stream.end()


def test_values_are_masked_and_all_else_stays() -> None:
    redactor = Redactor([TOKEN, "short", PEM])
    assert redactor.redact(b"token=hf_abcdefgh; ok") == b"token=[redacted]; ok"
    assert redactor.redact(b"a short word") == b"a short word", f"below {LEAST} bytes"
    assert redactor.redact_text("key MIIEvQIBADANBg, and\nkqhkiG9w0BAQEF") == "key [redacted], and\n[redacted]"
    assert Redactor().redact(b"anything") == b"anything"
    assert Redactor(['quo"ted-value']).redact(rb'{"a": "quo\"ted-value"}') == b'{"a": "[redacted]"}'


@given(
    st.lists(st.text("ab", min_size=LEAST, max_size=12), min_size=1, max_size=3),
    st.lists(st.text("ab", max_size=20), max_size=6),
)
def test_no_border_of_parts_shows_a_value(values: list[str], parts: list[str]) -> None:
    shown = streamed(Redactor(values), [part.encode() for part in parts]).decode()
    assert not any(value in shown for value in values)


@given(st.integers(LEAST, 4000), st.integers(0, 4100))
def test_a_long_value_is_masked_over_any_border(size: int, cut: int) -> None:
    value = "".join(chr(33 + n * n % 89) for n in range(1, size + 1))
    text = f"before {value} after".encode()
    redactor = Redactor([value])
    assert streamed(redactor, [text[:cut], text[cut:]]) == b"before [redacted] after"
    assert redactor.head_size(b"before " + value[:-1].encode()) == size - 1
    assert redactor.head_size(text) == 0


def test_a_line_that_is_cut_for_its_length_shows_no_half(tmp_path: Path) -> None:
    log = tmp_path / "1-0.log"
    log.write_bytes(b"x" * 65_530 + TOKEN.encode() + b"y" * 262_144 + TOKEN.encode() + b"\nlast " + TOKEN.encode())
    index = LogIndex(log)
    index.begin()
    reader = TimedLog(log, index, Redactor([TOKEN]))
    reader.begin(since_ms=None, tail=None)
    frames: list[bytes] = []
    while (read := reader.read(last=True)) is not None:
        frames += read
    text = b"".join(frame.split(b" ", 3)[3] for frame in frames)
    assert b"hf_" not in text
    assert b"abcdefgh" not in text
    assert frames[-1].endswith(b"last [redacted]\n")


def test_the_values_live_as_long_as_the_log(tmp_path: Path) -> None:
    folders, key = InstanceFolders(tmp_path), ProcessKey("i-1", 1, 0)
    folders.keep_secrets(key, [TOKEN])
    file = folders.log(key).with_suffix(".secrets")
    assert file.stat().st_mode & 0o777 == 0o600
    assert InstanceFolders(tmp_path).redactor(key).redact_text(f"is {TOKEN}") == "is [redacted]"
    for epoch in range(1, 6):
        folders.log(ProcessKey("i-1", epoch, 0)).touch()
    folders.prune({"i-1"})
    assert not file.exists()
    folders.keep_secrets(ProcessKey("i-1", 5, 0), [])
    assert folders.redactor(ProcessKey("i-1", 5, 0)).redact_text(TOKEN) == TOKEN


def parts_shown(value: str, shown: bytes) -> list[str]:
    """The parts of a value that a text shows, of the size from which values are taken out."""
    return [value[at : at + LEAST] for at in range(len(value) - LEAST + 1) if value[at : at + LEAST].encode() in shown]


LONG = "".join(map(chr, range(33, 93)))  # all different: no two parts look like one


@given(st.lists(st.sampled_from([LONG, "words ", "\n", LONG[:7]]), max_size=6), st.data())
def test_no_cut_of_a_text_shows_a_part_of_a_value(texts: list[str], data: st.DataObject) -> None:
    whole = "".join(texts).encode()
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    redactor, cut = Redactor([LONG]), whole[begin:end]
    assert parts_shown(LONG, redactor.redact_cut(cut)) == []
    stream, at = RedactedStream(redactor, cut=True), data.draw(st.integers(0, len(cut)))
    assert parts_shown(LONG, stream.feed(cut[:at]) + stream.feed(cut[at:]) + stream.end()) == []
    stream = RedactedStream(redactor, cut=True)
    missing = data.draw(st.integers(at, len(cut)))
    assert parts_shown(LONG, stream.feed(cut[:at]) + stream.seam(cut[missing:]) + stream.end()) == []


def test_what_is_whole_stays_at_a_seam() -> None:
    stream = RedactedStream(Redactor([TOKEN]))
    assert stream.feed(b"a hf_ab") + stream.seam(b"cdefgh b") + stream.end() == b"a [redacted] b"
    stream = RedactedStream(Redactor([TOKEN]), cut=True)
    assert stream.feed(b"plain") + stream.seam(b"text\n") + stream.end() == b"plaintext\n"


@pytest.mark.parametrize("shift", range(0, len(LONG), 7))
@pytest.mark.parametrize("tail", [0, 1, 3, 1000])
def test_no_rotation_and_no_tail_shows_a_part_of_a_value(tmp_path: Path, shift: int, tail: int) -> None:
    """A reader that follows over a rotation, and readers that begin after it, of either form."""
    folders, key = InstanceFolders(tmp_path, log_bytes=200), ProcessKey("i-1", 1, 0)
    log, redactor = folders.log(key), Redactor([LONG])
    line = f"{'x' * shift}{LONG} line {LONG}\n".encode()
    log.write_bytes(line * 2)
    early = PlainLog(log, folders.index(key), redactor)
    shown = early.tail(tail)
    for _ in range(3):
        with log.open("ab") as file:
            file.write(line * 3 + line[: 40 + shift])  # in the middle of a value
        assert folders.rotate_log(key)
        shown += early.read() or b""
        late = PlainLog(log, folders.index(key), redactor)
        shown += late.tail(tail) + late.rest()
        timed = TimedLog(log, folders.index(key), redactor)
        timed.begin(since_ms=None, tail=tail)
        while (frames := timed.read(last=True)) is not None:
            shown += b"".join(frame.split(b" ", 3)[3] for frame in frames)
        with log.open("ab") as file:
            file.write(line[40 + shift :])
        while (text := early.read()) is not None:
            shown += text
    assert parts_shown(LONG, shown + early.rest()) == []
    assert tail == 0 or b"line" in shown
