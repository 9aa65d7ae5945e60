"""State that survives a restart of the agent: the journal, and the records that it keeps."""
