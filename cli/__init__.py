"""The gpuward command: daemons and client verbs."""
