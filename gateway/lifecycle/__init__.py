"""The gateway's processes: fork, parent, peers, shutdown."""
