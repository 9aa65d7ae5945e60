"""The hub: agents' connections, command delivery, report intake."""
