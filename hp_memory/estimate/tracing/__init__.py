"""A layer on the meta device, written down as plain data."""
