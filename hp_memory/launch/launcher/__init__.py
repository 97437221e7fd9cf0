"""Where a user sits: plans, asks every node, starts the job and watches it."""
