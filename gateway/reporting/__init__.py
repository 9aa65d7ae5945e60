"""Health, metrics, and what the leader learns of demand."""
