"""What would happen: plans, explanations and moves, worked out with the scheduler and not written."""
