"""Arguments and environment of engines: which are refused, which need a grant, and how they are written."""
