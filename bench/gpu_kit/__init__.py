"""A check of Gpuward on a host with a real GPU and without a network: what travels there, and what runs there.

`build.py` makes the kit, `check.sh` runs it. On the host nothing can be fetched, so that all of it is in the kit.
"""
