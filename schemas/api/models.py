"""The API of models, in OpenAI's and Anthropic's form: its paths, which the gateway answers."""

from typing import Annotated, Final

import msgspec

from schemas.api.view import Literal, View


class ModelState(View, frozen=True, kw_only=True):
    """Whether a model answers at once, or a request for it waits."""

    state: Literal["asleep", "waking", "running"]
    adapter_of: Annotated[
        str | None, msgspec.Meta(description="The deployment whose adapter it is; null: another name.")
    ] = None


class ModelView(View, frozen=True, kw_only=True):
    """A model in the form of OpenAI's API."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "gpuward"
    gpuward: ModelState


class ModelList(View, frozen=True, kw_only=True):
    """The models that requests may ask for: all but those that are stopped."""

    object: str = "list"
    data: list[ModelView]


MODELS_PATH: Final = "/v1/models"
MODELS_SUMMARY: Final = "List models that requests may ask for"
MODEL_PATH: Final = "/v1/models/{name}"  # names of adapters and aliases may contain slashes
MODEL_SUMMARY: Final = "Show a model that requests may ask for"
# Passed on to an instance of the deployment that `model` in the body names; each is a POST.
MODEL_PATHS: Final = {
    "/v1/chat/completions": "Create a chat completion",
    "/v1/completions": "Create a completion",
    "/v1/responses": "Create a response",
    "/v1/messages": "Create a message",
    "/v1/messages/count_tokens": "Count the tokens of a message",
    "/v1/embeddings": "Create embeddings",
    "/v1/rerank": "Rank documents by their relevance",
    "/v1/score": "Score pairs of texts",
    "/v1/classify": "Classify texts",
    "/v1/pooling": "Pool the hidden states of texts",
    "/v1/tokenize": "Tokenize a text",
    "/v1/detokenize": "Turn tokens into a text",
    "/v1/audio/speech": "Create speech from a text",
    "/v1/images/generations": "Create images from a text",
    # As vLLM has them.
    "/rerank": "Rank documents by their relevance",
    "/score": "Score pairs of texts",
    "/classify": "Classify texts",
    "/pooling": "Pool the hidden states of texts",
    "/tokenize": "Tokenize a text",
    "/detokenize": "Turn tokens into a text",
    # As Cohere has them.
    "/v2/rerank": "Rank documents by their relevance",
    "/v2/embed": "Create embeddings",
}
# Endpoints with the model as a field of a form (multipart/form-data).
FORM_PATHS: Final = {
    "/v1/audio/transcriptions": "Transcribe speech",
    "/v1/audio/translations": "Translate speech into English text",
    "/v1/images/edits": "Edit images",
}
MODEL_ROLES: Final = frozenset({"inference", "operator", "admin"})
