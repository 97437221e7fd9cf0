"""Scripts and job files for others to start, and the programs that these scripts call."""
