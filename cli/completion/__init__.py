"""Completion of live names, as the user types. It imports neither typer nor the verbs, which are slow."""
