"""Which GPUs: inventory arrays, compatibility, feasibility, ranking, explanation. Pure."""
