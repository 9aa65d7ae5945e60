"""The agent's errors, by type."""

from typing import Final

INSTALL_EXTRA: Final = "install what the agent needs: pip install 'gpuward[agent]'"


class AgentError(Exception):
    """The agent cannot run; the message says what to do. The agent ends with exit code 1."""


class DataFolderError(AgentError):
    """The data folder cannot be used: another agent holds it, or it belongs to another worker."""


class SettingError(AgentError):
    """A setting asks for what this host does not have, or does not let this agent do."""


class NoGpusError(AgentError):
    """NVML does not load, and no simulated host was given."""


class RefusedError(AgentError):
    """The controller refused the join token or the credential for good."""


class UnreachableError(Exception):
    """The controller cannot be reached or cannot serve now; a later attempt may succeed, after `retry_after_s`."""

    retry_after_s: float = 0.0


class CredentialTakenError(UnreachableError):
    """The credential that this agent has chosen is or was another worker's: it joins with a new one."""


class RejectedError(UnreachableError):
    """The controller answers, but does not serve this agent now; the message says why."""


class CredentialReplacedError(UnreachableError):
    """The controller has handed over a new credential: the agent connects again with it."""


class SpawnError(Exception):
    """A process could not be started; the message is reported as the reason."""


class ProgramMissingError(SpawnError):
    """The program is not on the host."""
