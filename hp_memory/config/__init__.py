"""The configs: their schema, how they are composed, and how a bad one is refused."""
