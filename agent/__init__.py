"""The agent daemon on a GPU host."""
