"""The API of models, in OpenAI's and Anthropic's form: its paths, which the gateway answers."""

from typing import Final, Literal

from schemas.base import View


class ModelState(View):
    """Whether a model answers at once, or a request for it waits."""

    state: Literal["asleep", "waking", "running"]


class ModelView(View):
    """A model in the form of OpenAI's API."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "gpuward"
    gpuward: ModelState


class ModelList(View):
    """The models that requests may ask for: all but those that are stopped."""

    object: str = "list"
    data: list[ModelView]


MODELS_PATH: Final = "/v1/models"
MODELS_SUMMARY: Final = "List models that requests may ask for"
# Passed on to an instance of the deployment that `model` in the body names; each is a POST.
MODEL_PATHS: Final = {
    "/v1/chat/completions": "Create a chat completion",
    "/v1/completions": "Create a completion",
    "/v1/responses": "Create a response",
    "/v1/messages": "Create a message",
    "/v1/messages/count_tokens": "Count the tokens of a message",
    "/v1/embeddings": "Create embeddings",
}
MODEL_ROLES: Final = frozenset({"inference", "operator", "admin"})
