"""Manifests of `apply` and related verbs: reading, pruning, and confirmation of what policies would stop."""
