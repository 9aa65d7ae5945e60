"""Endpoints that answer with numbers derived from the input: embeddings, rankings, classes, tokens."""

import hashlib
import struct
from base64 import b64encode
from typing import Any, Final

from rig.engine.errors import BadRequestError
from rig.engine.fields import messages_text, model_name, text, texts
from rig.engine.generation import Ask, JsonForm, complete

_DIMENSIONS: Final = 8
_COHERE_DIMENSIONS: Final = 16
_MAX_DIMENSIONS: Final = 4096
_CONTEXT: Final = 32_768
_LABELS: Final = ("negative", "positive")

Content = dict[str, Any]


def _share(of: str) -> float:
    """A number from 0 to 1, derived from the text."""
    return int.from_bytes(hashlib.sha256(of.encode(errors="replace")).digest()[:4], "big") / 2**32


def _vector(of: str, dimensions: int) -> list[float]:
    return [round(2 * _share(f"{i} {of}") - 1, 6) for i in range(dimensions)]


class VectorForm(JsonForm):
    """Answers that have no tokens."""

    def token(self, i: int) -> bytes:  # noqa: ARG002 - it is never streamed
        return b""

    def usage(self) -> Content:
        tokens = self._ask.prompt_tokens
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    def answer(self, content: Content) -> bytes:
        return complete(content | ({"usage": self.usage()} if self._of.usage else {}))

    def listed(self, prefix: str, kind: str, items: list[Content]) -> bytes:
        data = [{"index": i, "object": kind, **item} for i, item in enumerate(items)]
        return self.answer(self.base("list", prefix) | {"data": data})


def parse_embeddings(body: Content) -> Ask:
    model = model_name(body)
    given = [messages_text(body)] if "messages" in body else texts(body, "input")
    form, dimensions = body.get("encoding_format") or "float", body.get("dimensions") or _DIMENSIONS
    if form not in ("float", "base64"):
        raise BadRequestError("encoding_format", "encoding_format: must be float or base64")
    if type(dimensions) is not int or not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise BadRequestError("dimensions", f"dimensions: must be a complete number from 1 to {_MAX_DIMENSIONS}")
    return Ask(model, " ".join(given), fields=(given, dimensions, form == "base64"))


class EmbeddingsForm(VectorForm):
    """Embeddings."""

    def complete(self) -> bytes:
        """One vector for each input."""
        inputs, dimensions, encoded = self._ask.fields
        vectors = [_vector(of, dimensions) for of in inputs]
        if encoded:
            packed = [b64encode(struct.pack(f"<{dimensions}f", *vector)).decode() for vector in vectors]
            return self.listed("embd", "embedding", [{"embedding": vector} for vector in packed])
        return self.listed("embd", "embedding", [{"embedding": vector} for vector in vectors])


def parse_cohere_embed(body: Content) -> Ask:
    given = texts(body, "texts")
    return Ask(model_name(body), " ".join(given), fields=given)


class CohereEmbedForm(VectorForm):
    """Embeddings as Cohere's clients read them."""

    def complete(self) -> bytes:
        vectors = [_vector(of, _COHERE_DIMENSIONS) for of in self._ask.fields]
        base = self.base("list", "embd")
        return self.answer({"id": base["id"], "embeddings": {"float": vectors}, "texts": self._ask.fields})


class PoolingForm(VectorForm):
    """Pooled states."""

    def complete(self) -> bytes:
        """One vector for each input."""
        inputs, dimensions, _ = self._ask.fields
        return self.listed("pool", "pooling", [{"data": _vector(of, dimensions)} for of in inputs])


def parse_rerank(body: Content) -> Ask:
    model, query = model_name(body), text(body, "query")
    documents = body.get("documents")
    if not isinstance(documents, list) or not documents:
        raise BadRequestError("documents", "documents: must be a list with at least one document")
    given = [text(document, "text") if isinstance(document, dict) else str(document) for document in documents]
    top = body.get("top_n") or len(given)
    if type(top) is not int or top < 1:
        raise BadRequestError("top_n", "top_n: must be a complete number from 1")
    return Ask(model, " ".join([query, *given]), fields=(query, given, top))


class RerankForm(VectorForm):
    """Documents, the most relevant first."""

    def complete(self) -> bytes:
        query, documents, top = self._ask.fields
        scores = [_share(f"{query}\n{document}") for document in documents]
        best = sorted(range(len(documents)), key=lambda i: -scores[i])[:top]
        results = [{"index": i, "document": {"text": documents[i]}, "relevance_score": scores[i]} for i in best]
        base = self.base("list", "rerank")
        return self.answer({"id": base["id"], "model": base["model"], "results": results})


def parse_score(body: Content) -> Ask:
    first, second = texts(body, "text_1"), texts(body, "text_2")
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise BadRequestError("text_2", "text_2: must be as many as text_1, unless that is one")
    return Ask(model_name(body), " ".join([*first, *second]), fields=list(zip(first, second, strict=True)))


class ScoreForm(VectorForm):
    """Scores."""

    def complete(self) -> bytes:
        return self.listed("score", "score", [{"score": _share(f"{a}\n{b}")} for a, b in self._ask.fields])


def parse_classify(body: Content) -> Ask:
    given = texts(body, "input")
    return Ask(model_name(body), " ".join(given), fields=given)


class ClassifyForm(VectorForm):
    """Classes."""

    def complete(self) -> bytes:
        classes = []
        for of in self._ask.fields:
            share = _share(of)
            classes.append({"label": _LABELS[share >= 0.5], "probs": [1 - share, share], "num_classes": len(_LABELS)})
        return self.listed("classify", "classification", classes)


def parse_tokenize(body: Content) -> Ask:
    return Ask(model_name(body), messages_text(body) if "messages" in body else text(body, "prompt"))


class TokenizeForm(VectorForm):
    """Tokens: the text's bytes, so that they can be converted back."""

    def complete(self) -> bytes:
        tokens = list(self._ask.prompt.encode(errors="replace"))
        return complete({"count": len(tokens), "max_model_len": _CONTEXT, "tokens": tokens})


def parse_detokenize(body: Content) -> Ask:
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token <= 255 for token in tokens):
        raise BadRequestError("tokens", "tokens: must be a list of tokens of this model")
    return Ask(model_name(body), bytes(tokens).decode(errors="replace"))


class DetokenizeForm(VectorForm):
    """A text."""

    def complete(self) -> bytes:
        return complete({"prompt": self._ask.prompt})
