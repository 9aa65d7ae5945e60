"""Reads the GPUs: through NVML in a child process, or as a simulated host's."""
