"""Samples: what the GPUs and the processes did in each sampling period, kept until the controller has it."""
