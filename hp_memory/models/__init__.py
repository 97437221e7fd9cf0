"""Where the regions are in a model: the reference MoE model, and maps of other models."""
