"""Rollouts: `judge` finds how far a rollout is, `plan` how many instances of each revision there may be."""
