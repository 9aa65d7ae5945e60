"""Completion of live names: what a shell asks while its user types. It imports neither typer nor the verbs."""
