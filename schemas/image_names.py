"""The parts of the name of a container image."""


def repository_of(reference: str) -> str:
    """The reference without tag and digest."""
    name = reference.partition("@")[0]
    before, _, last = name.rpartition("/")
    last = last.partition(":")[0]
    return f"{before}/{last}" if before else last


def short_repository(reference: str) -> str:
    """The repository as Docker shows it, without the names of Docker's own hub."""
    repository = repository_of(reference)
    for hub in ("docker.io/", "index.docker.io/"):
        repository = repository.removeprefix(hub)
    return repository.removeprefix("library/")
