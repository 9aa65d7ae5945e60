"""The order in which pending instances are placed: backfill, reservation, preemption and relocation."""
