"""The steps of a check. Each is a generator of findings, which are kept when it fails."""
