"""What there is and what is claimed, as arrays."""
