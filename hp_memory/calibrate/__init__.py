"""Measures what each region of a model takes on the device it runs on."""
