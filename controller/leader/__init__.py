"""Services of one term, which only the leader runs."""
