"""Which request is for what, who sends it, and whether its key lets it in."""
