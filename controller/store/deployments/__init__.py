"""Deployments with their revisions, instances, commands and processes."""
