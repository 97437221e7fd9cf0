"""The reference MoE language model, and where its regions are."""

from hp_memory.models.reference.model import Block, Model, build, next_token_loss
from hp_memory.models.reference.regions import region_map

__all__ = ["Block", "Model", "build", "next_token_loss", "region_map"]
