"""What the API returns and takes: objects by kind, and the bodies of requests."""
