"""API keys, join tokens and secrets."""
