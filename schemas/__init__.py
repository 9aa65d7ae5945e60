"""Wire contracts: what users write, what the API returns, what agent and controller say to each other."""
