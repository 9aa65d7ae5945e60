"""What each daemon needs of its host and its log: service manager, open files, bounded lines, periodic sweeps."""
