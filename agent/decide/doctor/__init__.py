"""The findings of `gpuward doctor` from its probes of a host. Pure."""
