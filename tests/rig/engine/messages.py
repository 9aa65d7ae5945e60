"""Anthropic's messages."""

from typing import Any

from rig.engine.chat import tool_call
from rig.engine.errors import BadRequestError
from rig.engine.fields import content_text, flag, messages_text, model_name, token_limit
from rig.engine.generation import Ask, JsonForm, complete, named_event

Content = dict[str, Any]


def parse_message(body: Content) -> Ask:

    if body.get("max_tokens") is None:
        raise BadRequestError("max_tokens", "max_tokens: is required")
    return _parsed(body, token_limit(body, "max_tokens"))


def parse_count(body: Content) -> Ask:

    return _parsed(body, 1)


def _parsed(body: Content, limit: int) -> Ask:
    model, stream = model_name(body), flag(body, "stream")
    prompt = f"{content_text(body.get('system'))} {messages_text(body)}"
    last = body["messages"][-1]
    parts = last["content"] if isinstance(last["content"], list) else []
    answered = any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)
    tool = None if answered else tool_call(body, lambda tool: tool["name"], content_text(last["content"]))
    return Ask(model, prompt, stream, limit, tool=tool)


class CountForm(JsonForm):
    """A count of tokens."""

    def token(self, i: int) -> bytes:  # noqa: ARG002 - it is never streamed
        """Nothing."""
        return b""

    def complete(self) -> bytes:
        return complete({"input_tokens": self._ask.prompt_tokens})


class MessageForm(JsonForm):
    """A message with one block: a text, or a use of a tool."""

    def _message(self, content: list[Content], reason: str | None, usage: Content) -> Content:
        message = {
            "id": f"msg_{self._of.id}", "type": "message", "role": "assistant", "model": self._ask.model,
            "content": content, "stop_reason": reason, "stop_sequence": None,
        }  # fmt: skip
        return message | ({"usage": usage} if self._of.usage else {})

    def _usage(self, output_tokens: int) -> Content:
        usage: Content = {"input_tokens": self._ask.prompt_tokens, "output_tokens": output_tokens}
        if self._of.cached is not None:  # the API counts them apart
            usage["input_tokens"] = max(0, usage["input_tokens"] - self._of.cached)
            usage |= {"cache_read_input_tokens": self._of.cached, "cache_creation_input_tokens": 0}
        return usage

    def _reason(self) -> str:
        return "tool_use" if self._ask.tool is not None else "end_turn" if self._of.ended else "max_tokens"

    def _block(self) -> Content:
        if (tool := self._ask.tool) is None:
            return {"type": "text", "text": ""}
        return {"type": "tool_use", "id": f"toolu_{self._of.id}", "name": tool.name, "input": {}}

    def opening(self) -> bytes:
        start = named_event({"type": "message_start", "message": self._message([], None, self._usage(1))})
        start += named_event({"type": "content_block_start", "index": 0, "content_block": self._block()})
        return start + named_event({"type": "ping"})

    def token(self, i: int) -> bytes:
        piece = self._of.piece(i)
        if self._ask.tool is None:
            delta = {"type": "text_delta", "text": piece}
        else:
            delta = {"type": "input_json_delta", "partial_json": piece}
        return named_event({"type": "content_block_delta", "index": 0, "delta": delta})

    def closing(self) -> bytes:
        end: Content = {"type": "message_delta", "delta": {"stop_reason": self._reason(), "stop_sequence": None}}
        if self._of.usage:
            end["usage"] = {"output_tokens": self._of.tokens}
        stop = named_event({"type": "content_block_stop", "index": 0}) + named_event(end)
        return stop + named_event({"type": "message_stop"})

    def complete(self) -> bytes:
        block = self._block()
        if (tool := self._ask.tool) is None:
            block["text"] = self._of.text()
        else:
            block["input"] = {"echo": tool.echoed}
        return complete(self._message([block], self._reason(), self._usage(self._of.tokens)))
