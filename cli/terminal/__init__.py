"""The terminal and the standard streams: screens, keys, questions, signals, closed pipes."""
