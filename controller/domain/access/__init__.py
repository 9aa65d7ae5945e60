"""Access: keys, secrets, grants and the audit log, and what is hidden of them."""
