"""The wanted number of replicas by demand. Pure."""
