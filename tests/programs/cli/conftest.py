"""The command line against the double of the API."""

from support.standins.command_line import api, gpuward

__all__ = ["api", "gpuward"]
