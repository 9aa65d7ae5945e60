"""In which order pending instances are placed, and what is reserved, preempted or relocated for them."""
