"""The model's endpoints by path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rig.engine import chat, media, messages, responses, vectors
from rig.engine.fields import body_object
from rig.engine.generation import Ask, Form, Generation
from rig.engine.multipart import FormData


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Validation and form of answers. `parse` takes the JSON body, or the form."""

    parse: Callable[[Any], Ask]
    form: Callable[[Generation], Form]
    is_form: bool = False
    generates: bool = False  # its answers have tokens
    anthropic: bool = False  # its errors have Anthropic's shape

    def ask(self, content: Any) -> Ask:
        """Raises BadRequestError."""
        return self.parse(content if isinstance(content, FormData) else body_object(content))


_V1: Final = {
    "chat/completions": Endpoint(chat.parse_chat, chat.ChatForm, generates=True),
    "completions": Endpoint(chat.parse_completion, chat.CompletionForm, generates=True),
    "responses": Endpoint(responses.parse_response, responses.ResponseForm, generates=True),
    "messages": Endpoint(messages.parse_message, messages.MessageForm, generates=True, anthropic=True),
    "messages/count_tokens": Endpoint(messages.parse_count, messages.CountForm, anthropic=True),
    "embeddings": Endpoint(vectors.parse_embeddings, vectors.EmbeddingsForm),
    "audio/speech": Endpoint(media.parse_speech, media.SpeechForm, generates=True),
    "audio/transcriptions": Endpoint(media.parse_transcript, media.TranscriptForm, is_form=True, generates=True),
    "audio/translations": Endpoint(media.parse_transcript, media.TranscriptForm, is_form=True, generates=True),
    "images/generations": Endpoint(media.parse_image, media.ImageForm),
    "images/edits": Endpoint(media.parse_image_edit, media.ImageForm, is_form=True),
}
# Served with and without /v1, as vLLM does.
_BOTH: Final = {
    "rerank": Endpoint(vectors.parse_rerank, vectors.RerankForm),
    "score": Endpoint(vectors.parse_score, vectors.ScoreForm),
    "classify": Endpoint(vectors.parse_classify, vectors.ClassifyForm),
    "pooling": Endpoint(vectors.parse_embeddings, vectors.PoolingForm),
    "tokenize": Endpoint(vectors.parse_tokenize, vectors.TokenizeForm),
    "detokenize": Endpoint(vectors.parse_detokenize, vectors.DetokenizeForm),
}
ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    **{f"/v1/{path}": endpoint for path, endpoint in (_V1 | _BOTH).items()},
    **{f"/{path}": endpoint for path, endpoint in _BOTH.items()},
    "/v2/rerank": _BOTH["rerank"],
    "/v2/embed": Endpoint(vectors.parse_cohere_embed, vectors.CohereEmbedForm),
}
