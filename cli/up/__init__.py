"""`gpuward up`: a controller and local agents in one process. What they are is given by `cli.up.verb`."""
