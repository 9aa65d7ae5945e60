"""What `apply` and its relatives read and ask before they change anything."""
