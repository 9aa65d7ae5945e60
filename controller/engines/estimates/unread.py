"""Models of which a part is not read: their need is unknown, and never guessed low. Pure."""

from controller.domain.model_facts import ModelFacts
from controller.domain.placement import Need
from schemas.placement_reasons import Reason


def unread_of(facts: ModelFacts) -> str | None:
    """What of the model is not read, so that its need is unknown; None: nothing."""
    if facts.elsewhere is not None:
        return f"its weights are in another repository, which config.json names as {facts.elsewhere}"
    if facts.unknown is not None and not facts.encoder:
        return f"this version does not know what its layers keep of a sequence: {facts.unknown}"
    return None


def unknown_need(unread: str) -> Need:
    """A need that is unknown, and how to state it."""
    return Need(
        None, refused=(Reason.METADATA_UNKNOWN,), notes=(f"{unread}; set resources.gpu_memory and resources.gpus",)
    )
