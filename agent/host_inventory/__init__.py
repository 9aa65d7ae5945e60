"""The host: its memory, its GPUs as last read, and the engines that are installed on it."""
