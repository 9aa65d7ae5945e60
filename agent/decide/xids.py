"""Judges the driver's error events (Xids). Pure."""

from schemas.xids import CONDEMNING


def reason_of(code: int) -> str | None:
    """The health reason of a GPU with this event; None: it does not condemn the GPU."""
    text = CONDEMNING.get(code)
    return None if text is None else f"xid_{code}: {text} (Xid {code})"
