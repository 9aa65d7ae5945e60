"""Completion of live names: what a shell requests while its user types. It imports neither typer nor the verbs."""
