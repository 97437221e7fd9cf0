"""What a plan and a checkpoint must know of a model, from its settings alone. No MindSpore here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from hp_memory.layout import GROUPS, REGIONS_OF_KIND, ModelFingerprint
from hp_memory.layout.regions import Kind
from hp_memory.models.settings import REFERENCE, ModelSettings

# These change how a model is trained, not which model it is: a checkpoint made with others still fits.
_NOT_THE_MODEL = ("seq_length", "aux_loss_coeff", "init_std", "activation")


def fingerprint(model: ModelSettings) -> ModelFingerprint:
    """The model's family, the regions of each kind of layer it has, and a digest that tells models apart."""
    kinds = model.kinds
    regions = {kind: _regions(model, kind) for kind in dict.fromkeys(kinds)}
    fixed = {name: value for name, value in asdict(model).items() if name not in _NOT_THE_MODEL}
    digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]
    return ModelFingerprint(model.family, kinds, regions, digest)


def _regions(model: ModelSettings, kind: Kind) -> tuple[str, ...]:
    missing = _missing(model)
    return tuple(region for region in REGIONS_OF_KIND[kind] if region not in missing)


def _missing(model: ModelSettings) -> set[str]:
    """Regions that no layer of this model has."""
    missing: set[str] = set()
    if not model.shared_experts:
        missing |= set(GROUPS["shared_experts"])
    if not model.kv_lora_rank:
        missing |= {"attention.q_up", "attention.kv_up"}
    if model.family == REFERENCE:
        missing.add("attention.qk_norm")
    return missing
