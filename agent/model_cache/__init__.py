"""Models of the hub on this host: fetched once for all deployments, shared, bounded in size."""
