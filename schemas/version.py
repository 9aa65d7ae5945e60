"""The version of Gpuward. The package, the API, the agents and the command line read it from here."""

__version__ = "0.1.0"
