"""The error of reading a model's metadata."""


class MetadataError(Exception):
    """A model's need could not be read (reason `metadata_unknown`).

    `retryable`: a later try may succeed, for example when the folder appears or the hub answers. A corrupt file stays
    corrupt until its owner replaces it.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class GatedModelError(MetadataError):
    """The hub shows the model only to accounts that were granted access (reason `model_gated`)."""
