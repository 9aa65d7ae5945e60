"""Demand of the gateways, wakes, and the autoscaler's numbers."""
