"""`gpuward up`: a controller and local agents in one process. `cli.up.verb` passes them in."""
