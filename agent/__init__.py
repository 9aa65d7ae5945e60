"""The agent of Gpuward: a daemon on each GPU host."""
