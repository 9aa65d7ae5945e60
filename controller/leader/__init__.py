"""What only the leader runs beside its reconcilers: services of one term."""
