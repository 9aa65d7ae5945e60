"""Utilization policies, their verdicts and actions."""
