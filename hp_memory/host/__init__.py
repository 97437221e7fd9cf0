"""Tensors that wait on the host: copies out and back, in which order, and within which memory. Knows no regions."""
