"""Tables, pictures and pages of what a run found."""
