"""Telemetry of GPUs: series of samples, their history, use and price."""
