"""One module per command, imported when the command runs: config-only commands don't wait for MindSpore."""
