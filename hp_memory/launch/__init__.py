"""Starting, watching and ending a job: msrun on one node and many."""
