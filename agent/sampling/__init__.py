"""Samples: what the GPUs and processes did in each sampling period, kept until the controller has stored it."""
