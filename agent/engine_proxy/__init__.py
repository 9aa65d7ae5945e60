"""The proxy through which gateways reach the engines of this host, and the requests in flight there."""
