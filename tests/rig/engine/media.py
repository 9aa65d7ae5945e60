"""Speech, transcripts and images."""

import struct
import zlib
from base64 import b64encode
from typing import Any, Final

from rig.engine.errors import BadRequestError
from rig.engine.fields import flag, model_name, text
from rig.engine.generation import Ask, Generation, JsonForm, complete, named_event
from rig.engine.multipart import FormData

_RATE: Final = 8000  # samples per second
_SAMPLES: Final = b"\0\0" * (_RATE // 10)  # of silence, for each token
_ENDLESS: Final = 0x7FFF_FFFF  # the length in a head that is sent before the sound is made
_MAX_IMAGES: Final = 10
_TEXT: Final = "text/plain; charset=utf-8"

Content = dict[str, Any]


def parse_speech(body: Content) -> Ask:
    spoken = text(body, "input")
    streamed = body.get("stream_format") in (None, "audio")
    return Ask(model_name(body), spoken, streamed, limit=max(1, len(spoken.split())))


class SpeechForm(JsonForm):
    """Silence as a WAV file, a tenth of a second for each token."""

    stream_type = complete_type = "audio/wav"

    def opening(self) -> bytes:
        form = struct.pack("<IHHIIHH", 16, 1, 1, _RATE, 2 * _RATE, 2, 16)
        return b"RIFF" + struct.pack("<I", _ENDLESS) + b"WAVEfmt " + form + b"data" + struct.pack("<I", _ENDLESS - 36)

    def token(self, i: int) -> bytes:  # noqa: ARG002 - all are alike
        return _SAMPLES

    def complete(self) -> bytes:
        return self.opening() + _SAMPLES * self._of.tokens


def parse_transcript(form: FormData) -> Ask:
    fields: Content = {**form.fields, "stream": form.fields.get("stream", "").lower() == "true"}
    if not any(file["name"] == "file" for file in form.files):
        raise BadRequestError("file", "file: must be a file")
    fields |= {"files": form.files, "format": fields.get("response_format") or "json"}
    return Ask(model_name(fields), fields.get("prompt") or "", flag(fields, "stream"), limit=16, fields=fields)


class TranscriptForm(JsonForm):
    """A transcript or a translation."""

    def __init__(self, generation: Generation) -> None:
        super().__init__(generation)
        self._plain = self._ask.fields["format"] in ("text", "srt", "vtt")
        if self._plain:
            self.complete_type = _TEXT

    def _usage(self) -> Content:
        usage = self.usage()
        tokens = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
        return {"type": "tokens", **tokens, "total_tokens": usage["total_tokens"]}

    def _content(self) -> Content:
        content: Content = {"text": self._of.text()}
        return content | ({"usage": self._usage()} if self._of.usage else {})

    def token(self, i: int) -> bytes:
        return named_event({"type": "transcript.text.delta", "delta": self._of.piece(i)})

    def closing(self) -> bytes:
        return named_event({"type": "transcript.text.done", **self._content()}) + b"data: [DONE]\n\n"

    def complete(self) -> bytes:
        """The text; as JSON also the received files."""
        if self._plain:
            return f"{self._of.text()}\n".encode()
        content = self._content() | {"files": self._ask.fields["files"]}
        if self._ask.fields["format"] == "verbose_json":
            content |= {"task": "transcribe", "language": "english", "duration": 1.0, "segments": []}
        return complete(content)


def parse_image(body: Content) -> Ask:
    model, prompt, count = model_name(body), text(body, "prompt"), body.get("n") or 1
    if type(count) is not int or not 1 <= count <= _MAX_IMAGES:
        raise BadRequestError("n", f"n: must be a complete number from 1 to {_MAX_IMAGES}")
    return Ask(model, prompt, fields={"n": count})


def parse_image_edit(form: FormData) -> Ask:
    if not any(file["name"] == "image" for file in form.files):
        raise BadRequestError("image", "image: must be a file")
    count = form.fields.get("n") or "1"
    ask = parse_image({**form.fields, "n": int(count) if count.isdecimal() else count})
    return Ask(ask.model, ask.prompt, fields={**ask.fields, "files": form.files})


class ImageForm(JsonForm):
    """Images of one grey pixel."""

    def token(self, i: int) -> bytes:  # noqa: ARG002 - it is never streamed
        """Nothing."""
        return b""

    def complete(self) -> bytes:
        """The images; for edits also the received files."""
        image = {"b64_json": b64encode(_pixel()).decode()}
        content: Content = {"created": self._of.created, "data": [image] * self._ask.fields["n"]}
        if "files" in self._ask.fields:
            content["files"] = self._ask.fields["files"]
        tokens = self._ask.prompt_tokens
        usage: Content = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
        usage |= {"input_tokens_details": {"text_tokens": tokens, "image_tokens": 0}}
        return complete(content | ({"usage": usage} if self._of.usage else {}))


def _pixel() -> bytes:
    """A PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\x80")) + chunk(b"IEND", b"")
