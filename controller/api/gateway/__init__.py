"""The gateway: OpenAI-compatible routes under `/v1`, forwarded to running instances."""
