"""Errors of the agent that end it or refuse an order, told apart by type."""


class AgentError(Exception):
    """The agent cannot run; the message says what to do. Ends it with exit code 1."""


class DataFolderError(AgentError):
    """The data folder cannot be used: taken by another agent, or another worker's."""


class NoGpusError(AgentError):
    """NVML does not load and no simulated host was given."""


class RefusedError(AgentError):
    """The controller refused the join token or the credential for good."""


class UnreachableError(Exception):
    """The controller cannot be reached or cannot serve now: try again later."""


class SpawnError(Exception):
    """A process could not be started; the message is the reason that is reported."""
