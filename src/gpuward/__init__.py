"""Gpuward: the control plane that keeps AI models on GPUs."""

__version__ = "0.1.0"
