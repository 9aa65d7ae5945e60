"""The controller of Gpuward: holds what users want and closes the difference to what the agents report."""
