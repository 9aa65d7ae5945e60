"""`top`: reads of the cluster, and the live view with its keys."""
