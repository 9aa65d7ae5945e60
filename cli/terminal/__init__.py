"""The terminal and the standard streams: pictures in place, keys, questions, signals, closed pipes."""
