"""MindFormers' training YAML: what its keys mean, reading it, writing it, and putting a plan into someone's file."""
