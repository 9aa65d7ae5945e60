"""One file per engine: what it runs on, how much memory it needs, its argv, its probes. Pure."""
