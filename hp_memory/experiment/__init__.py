"""The desk where a config becomes an experiment: checked once, handed to every command."""
