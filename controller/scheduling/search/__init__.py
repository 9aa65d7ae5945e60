"""Where one ask fits best: filters, ranking, gangs."""
