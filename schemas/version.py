"""The version of Gpuward, stated here alone: the package, the API, agents and the command line read it."""

__version__ = "0.1.0"
