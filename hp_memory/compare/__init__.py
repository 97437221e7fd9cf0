"""The same steps under several layouts: equal bits, retained memory, replays and time."""
