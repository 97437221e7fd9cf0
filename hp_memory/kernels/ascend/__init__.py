"""Ascend's kernels and collectives."""
