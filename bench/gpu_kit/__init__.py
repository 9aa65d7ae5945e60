"""A check of Gpuward on a host with a real GPU and without a network.

`build.py` makes the kit, and `check.sh` runs it on the host. The kit has all files, since the host can fetch none.
"""
