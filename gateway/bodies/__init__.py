"""What the gateway reads of a request's body: JSON and forms."""
