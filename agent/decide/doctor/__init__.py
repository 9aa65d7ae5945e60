"""What `gpuward doctor` makes of the facts of a host. Pure."""
