"""The steps of a check. Each is a generator of findings, so that those before a failure are kept."""
