"""What a trace means for a rank: what is held, when, and what else it needs."""
