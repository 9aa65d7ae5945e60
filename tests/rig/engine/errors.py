"""Errors of requests."""


class BadRequestError(ValueError):
    """The request is invalid; `param` names the field."""

    def __init__(self, param: str | None, message: str) -> None:
        super().__init__(message)
        self.param = param


class UnknownModelError(LookupError):
    """The engine does not answer to this name."""
