"""OpenAI's Responses."""

from itertools import count
from typing import Any

from rig.engine.chat import tool_call
from rig.engine.errors import BadRequestError
from rig.engine.fields import content_text, flag, model_name, token_limit
from rig.engine.generation import Ask, Generation, JsonForm, complete, named_event

Content = dict[str, Any]


def parse_response(body: Content) -> Ask:

    model, limit, stream = model_name(body), token_limit(body, "max_output_tokens"), flag(body, "stream")
    given = body.get("input")
    items = [given] if isinstance(given, str) else given
    if not isinstance(items, list) or not items or not all(isinstance(item, str | dict) for item in items):
        raise BadRequestError("input", "input: must be a string or a list of items")
    texts = [_item_text(item) for item in items]
    instructions = body.get("instructions") or ""
    if not isinstance(instructions, str):
        raise BadRequestError("instructions", "instructions: must be a string")
    answered = isinstance(items[-1], dict) and items[-1].get("type") == "function_call_output"
    tool = None if answered else tool_call(body, lambda tool: tool["name"], texts[-1])
    fields = {name: body.get(name) for name in ("instructions", "metadata", "previous_response_id", "temperature")}
    fields |= {"tools": body.get("tools") or [], "tool_choice": body.get("tool_choice") or "auto"}
    return Ask(model, " ".join([instructions, *texts]), stream, limit, tool=tool, fields=fields)


def _item_text(item: Any) -> str:
    return content_text(item.get("content", item.get("output", ""))) if isinstance(item, dict) else str(item)


class ResponseForm(JsonForm):
    """A response with one output item: a message, or a call of a tool."""

    def __init__(self, generation: Generation) -> None:
        super().__init__(generation)
        self._sequence = count()
        self._tool = generation.ask.tool
        prefix = "msg" if self._tool is None else "fc"
        self._item_id = f"{prefix}_{generation.id}"
        self._at: Content = {"item_id": self._item_id, "output_index": 0}
        if self._tool is None:
            self._at |= {"content_index": 0}

    def _response(self, status: str, output: list[Content]) -> Content:
        of, ended = self._of, status in ("completed", "incomplete")
        return {
            "id": f"resp_{of.id}", "object": "response", "created_at": of.created, "status": status, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": of.ask.model, "output": output, "parallel_tool_calls": True, "top_p": None,
            "max_output_tokens": of.ask.limit, **of.ask.fields, "usage": self._usage() if ended and of.usage else None,
        }  # fmt: skip

    def _usage(self) -> Content:
        usage = self.usage()
        return {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": self._of.cached or 0},
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }  # fmt: skip

    def _status(self) -> str:
        return "completed" if self._of.ended or self._tool is not None else "incomplete"

    def _item(self, status: str, text: str | None) -> Content:
        """The output item; without a text it has only started."""
        if self._tool is not None:
            call = {"type": "function_call", "id": self._item_id, "call_id": f"call_{self._of.id}"}
            return call | {"name": self._tool.name, "arguments": text or "", "status": status}
        parts = [] if text is None else [_part(text)]
        return {"type": "message", "id": self._item_id, "role": "assistant", "status": status, "content": parts}

    def _event(self, kind: str, **content: Any) -> bytes:
        return named_event({"type": f"response.{kind}", "sequence_number": next(self._sequence), **content})

    def opening(self) -> bytes:
        response = self._response("in_progress", [])
        events = self._event("created", response=response) + self._event("in_progress", response=response)
        events += self._event("output_item.added", output_index=0, item=self._item("in_progress", None))
        if self._tool is None:
            events += self._event("content_part.added", **self._at, part=_part(""))
        return events

    def token(self, i: int) -> bytes:
        if self._tool is not None:
            return self._event("function_call_arguments.delta", **self._at, delta=self._of.piece(i))
        return self._event("output_text.delta", **self._at, delta=self._of.piece(i), logprobs=[])

    def closing(self) -> bytes:
        text, status = self._of.text(), self._status()
        if self._tool is not None:
            arguments: Content = {"name": self._tool.name, "arguments": text}
            events = self._event("function_call_arguments.done", **self._at, **arguments)
        else:
            events = self._event("output_text.done", **self._at, text=text, logprobs=[])
            events += self._event("content_part.done", **self._at, part=_part(text))
        item = self._item(status, text)
        events += self._event("output_item.done", output_index=0, item=item)
        return events + self._event(status, response=self._response(status, [item]))

    def complete(self) -> bytes:
        status = self._status()
        return complete(self._response(status, [self._item(status, self._of.text())]))


def _part(text: str) -> Content:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
