"""No value of a secret is shown, wherever a text is cut."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.log_index import LogIndex
from agent.process_records import ProcessKey
from agent.processes.folders import InstanceFolders
from agent.redaction import LEAST, RedactedStream, Redactor
from agent.timed_log import TimedLog

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
    assert redactor.begun(b"before " + value[:-1].encode()) == size - 1
    assert redactor.begun(text) == 0


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
