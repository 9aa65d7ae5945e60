"""OpenAI's chat completions and completions."""

import json
from collections.abc import Callable
from typing import Any, Final

from rig.engine.errors import BadRequestError
from rig.engine.fields import flag, include_usage, messages_text, model_name, texts, token_limit
from rig.engine.generation import Ask, Generation, JsonForm, ToolCall, complete, event

_ECHOED: Final = 1000  # characters


def parse_chat(body: dict[str, Any]) -> Ask:
    model, limit = model_name(body), token_limit(body, "max_completion_tokens", "max_tokens")
    stream, usage = flag(body, "stream"), include_usage(body)
    prompt = messages_text(body)
    answered = body["messages"][-1]["role"] == "tool"
    text = messages_text({"messages": body["messages"][-1:]})
    tool = None if answered else tool_call(body, lambda tool: tool["function"]["name"], text)
    return Ask(model, prompt, stream, limit, usage, tool)


def tool_call(body: dict[str, Any], name_of: Callable[[Any], Any], text: str) -> ToolCall | None:
    """A call of the chosen or first tool; None if none is offered or wanted."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools or choice == "none" or (isinstance(choice, dict) and choice.get("type") == "none"):
        return None
    try:
        names = [str(name_of(tool)) for tool in tools]
    except (KeyError, TypeError):
        raise BadRequestError("tools", "tools: must be a list of functions with names") from None
    if isinstance(choice, dict):
        chosen = choice.get("name") or (choice.get("function") or {}).get("name")
        if chosen is not None and chosen not in names:
            raise BadRequestError("tool_choice", f"tool_choice: {chosen!r} is not one of tools")
        return ToolCall(chosen or names[0], text[:_ECHOED])
    return ToolCall(names[0], text[:_ECHOED])


def parse_completion(body: dict[str, Any]) -> Ask:

    model, limit, stream = model_name(body), token_limit(body, "max_tokens"), flag(body, "stream")
    return Ask(model, " ".join(texts(body, "prompt")), stream, limit, include_usage(body))


class ChatForm(JsonForm):
    """Chat completions."""

    def __init__(self, generation: Generation) -> None:
        super().__init__(generation)
        base = json.dumps(self.base("chat.completion.chunk", "chatcmpl"))[:-1]
        self._begin = f'{base}, "choices": [{{"index": 0, "logprobs": null, "finish_reason": '
        self._last = generation.tokens - 1

    def _reason(self) -> str:
        return "tool_calls" if self._ask.tool is not None else "stop" if self._of.ended else "length"

    def token(self, i: int) -> bytes:
        """A chunk; the last has the finish reason."""
        delta: dict[str, Any] = {"role": "assistant"} if i == 0 else {}
        piece = self._of.piece(i)
        if self._ask.tool is None:
            delta["content"] = piece
        else:
            call: dict[str, Any] = {"index": 0, "function": {"arguments": piece}}
            if i == 0:
                call |= {"id": f"call-{self._of.id}", "type": "function"}
                call["function"]["name"] = self._ask.tool.name
            delta["tool_calls"] = [call]
        reason = f'"{self._reason()}"' if i == self._last else "null"
        return event(f'{self._begin}{reason}, "delta": {json.dumps(delta)}}}]}}')

    def closing(self) -> bytes:
        """Usage, if it was asked for, and the end."""
        content = {**self.base("chat.completion.chunk", "chatcmpl"), "choices": [], "usage": self.usage()}
        usage = event(json.dumps(content)) if self._ask.usage_in_stream and self._of.usage else b""
        return usage + b"data: [DONE]\n\n"

    def complete(self) -> bytes:
        """The completion."""
        message: dict[str, Any] = {"role": "assistant", "content": self._of.text()}
        if (tool := self._ask.tool) is not None:
            function = {"name": tool.name, "arguments": tool.arguments}
            call = {"id": f"call-{self._of.id}", "type": "function", "function": function}
            message |= {"content": None, "tool_calls": [call]}
        choice = {"index": 0, "finish_reason": self._reason(), "logprobs": None, "message": message}
        content = self.base("chat.completion", "chatcmpl") | {"choices": [choice]}
        return complete(content | ({"usage": self.usage()} if self._of.usage else {}))


class CompletionForm(JsonForm):
    """Completions."""

    def _choice(self, text: str, *, last: bool) -> dict[str, Any]:
        reason = ("stop" if self._of.ended else "length") if last else None
        return {"index": 0, "finish_reason": reason, "logprobs": None, "text": text}

    def token(self, i: int) -> bytes:
        """A chunk."""
        choice = self._choice(self._of.piece(i), last=i == self._of.tokens - 1)
        return event(json.dumps(self.base("text_completion", "cmpl") | {"choices": [choice]}))

    def closing(self) -> bytes:
        """Usage, if it was asked for, and the end."""
        content = self.base("text_completion", "cmpl") | {"choices": [], "usage": self.usage()}
        usage = event(json.dumps(content)) if self._ask.usage_in_stream and self._of.usage else b""
        return usage + b"data: [DONE]\n\n"

    def complete(self) -> bytes:
        """The completion."""
        content = self.base("text_completion", "cmpl") | {"choices": [self._choice(self._of.text(), last=True)]}
        return complete(content | ({"usage": self.usage()} if self._of.usage else {}))
