"""How reading a model's metadata can fail."""


class MetadataError(Exception):
    """A model's need could not be read (reason `metadata_unknown`).

    `retryable` says whether trying again may help: the folder may appear, the hub may answer. A file that is corrupt
    stays so until its owner acts.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable
