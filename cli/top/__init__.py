"""`top`: what is read of the cluster, the printed tables, and the live view with its keys."""
