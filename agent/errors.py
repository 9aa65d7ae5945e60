"""Errors of the agent."""

from typing import Final

INSTALL_EXTRA: Final = "install what the agent needs: pip install 'gpuward[agent]'"


class AgentError(Exception):
    """The agent cannot run and ends with exit code 1; the message names the remedy."""


class DataFolderError(AgentError):
    """Another agent holds the data folder, or it belongs to another worker."""


class SettingError(AgentError):
    """A setting requires what this host lacks or does not permit."""


class NoGpusError(AgentError):
    """NVML does not load, and no simulated host was given."""


class RefusedError(AgentError):
    """The controller refused the join token or the credential permanently."""


class UnreachableError(Exception):
    """The controller cannot be reached or cannot serve now. Retry after `retry_after_s`."""

    retry_after_s: float = 0.0


class CredentialTakenError(UnreachableError):
    """The chosen credential is or was another worker's. The agent joins with a new one."""


class RejectedError(UnreachableError):
    """The controller answers, but does not serve this agent now."""


class CredentialReplacedError(UnreachableError):
    """The controller has issued a new credential. The agent reconnects with it."""


class SpawnError(Exception):
    """A process could not be started. The message is reported as the reason."""


class ProgramMissingError(SpawnError):
    """The program is not on the host."""
