"""The small trainer of the reference model."""
