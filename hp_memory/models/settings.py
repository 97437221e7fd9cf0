"""The shape of a model and how it is spread over ranks. No MindSpore here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from omegaconf import MISSING

from hp_memory.errors import ConfigError
from hp_memory.layout.regions import Kind

REFERENCE = "reference"
SCORINGS = ("softmax", "sigmoid")
ACTIVATIONS = ("silu", "fusedswiglu")


@dataclass
class ModelSettings:
    """A decoder-only MoE language model. A size of 0 means that the model has no such part."""

    family: str = MISSING
    """``reference`` (the model of this package) or a model family of MindFormers."""
    num_layers: int = MISSING
    """Decoder layers, without the MTP layers."""
    hidden_size: int = MISSING
    num_heads: int = MISSING
    num_kv_heads: int = MISSING
    """Groups of query heads that share a key and value head; equal to ``num_heads`` for plain multi-head attention."""
    head_dim: int = MISSING
    """Width of a head; rotary positions need it even."""
    ffn_size: int = MISSING
    """Inner width of a dense layer's MLP."""
    first_dense_layers: int = 0
    """Number of leading layers with a dense MLP; the rest use experts."""
    num_experts: int = MISSING
    top_k: int = MISSING
    """Experts per token."""
    expert_ffn_size: int = MISSING
    """Inner width of one expert."""
    shared_experts: int = 0
    """Experts that every token visits, computed as one MLP ``shared_experts * expert_ffn_size`` wide."""
    vocab_size: int = MISSING
    seq_length: int = MISSING
    """Tokens per sequence."""
    mtp_layers: int = 0
    """Multi-token-prediction layers after the last decoder layer."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    q_lora_rank: int = 0
    """Multi-head latent attention: rank of the query's compression."""
    kv_lora_rank: int = 0
    """Multi-head latent attention: rank of the compressed keys and values."""
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    scoring: str = "softmax"
    """How the router turns logits into scores."""
    n_group: int = 1
    """Groups of experts of which a token may use only ``topk_group``."""
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    aux_loss_coeff: float = 0.01
    """Weight of the loss that balances the experts' load."""
    init_std: float = 0.02
    activation: str = "silu"
    """``silu`` (gate and product as operations of their own) or ``fusedswiglu`` (one kernel; MindFormers' models)."""

    def validate(self, path: str = "model") -> None:
        """Raises ConfigError for a model that can't be built."""
        self._check_sizes(path)
        self._check_experts(path)
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"{path}.activation", self.activation, "no such activation", ACTIVATIONS)
        if self.family == REFERENCE:
            self._check_reference(path)

    def _check_sizes(self, path: str) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "seq_length"):
            _at_least(1, path, name, getattr(self, name))
        for name in ("shared_experts", "mtp_layers", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
                     "qk_rope_head_dim", "v_head_dim", "aux_loss_coeff", "init_std"):  # fmt: skip
            _at_least(0, path, name, getattr(self, name))
        for name in ("rope_theta", "norm_eps", "routed_scaling_factor"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "must be above 0")
        if self.num_heads % self.num_kv_heads:
            why = f"must divide {path}.num_heads={self.num_heads}"
            raise ConfigError(f"{path}.num_kv_heads", self.num_kv_heads, why)
        if not 0 <= self.first_dense_layers <= self.num_layers:
            why = f"must be between 0 and {path}.num_layers={self.num_layers}"
            raise ConfigError(f"{path}.first_dense_layers", self.first_dense_layers, why)
        if self.first_dense_layers:
            _at_least(1, path, "ffn_size", self.ffn_size)

    def _check_experts(self, path: str) -> None:
        if self.first_dense_layers == self.num_layers and not self.mtp_layers:
            return
        for name in ("num_experts", "top_k", "expert_ffn_size", "n_group", "topk_group"):
            _at_least(1, path, name, getattr(self, name))
        if self.top_k > self.num_experts:
            raise ConfigError(f"{path}.top_k", self.top_k, f"there are {self.num_experts} experts only")
        if self.num_experts % self.n_group:
            raise ConfigError(f"{path}.n_group", self.n_group, f"must divide {path}.num_experts={self.num_experts}")
        if self.topk_group > self.n_group:
            raise ConfigError(f"{path}.topk_group", self.topk_group, f"there are {self.n_group} groups only")
        if self.scoring not in SCORINGS:
            raise ConfigError(f"{path}.scoring", self.scoring, "no such scoring", SCORINGS)

    def _check_reference(self, path: str) -> None:
        without = {"mtp_layers": 0, "q_lora_rank": 0, "kv_lora_rank": 0, "n_group": 1, "activation": "silu"}
        for name, only in without.items():
            if getattr(self, name) != only:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "the reference model has no such part", [only])
        if self.head_dim % 2:
            raise ConfigError(f"{path}.head_dim", self.head_dim, "rotary positions need an even width")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kind of each layer, MTP layers last."""
        moe = self.num_layers - self.first_dense_layers
        sizes: tuple[tuple[Kind, int], ...] = (
            ("dense", self.first_dense_layers), ("moe", moe), ("mtp", self.mtp_layers),
        )  # fmt: skip
        return tuple(kind for kind, count in sizes for _ in range(count))


def with_layers(model: ModelSettings, dense: int, moe: int) -> ModelSettings:
    """The same model with so many layers of each kind, each as large as in the whole one."""
    return replace(model, num_layers=dense + moe, first_dense_layers=dense)


def one_of_each(model: ModelSettings) -> ModelSettings:
    """The same model with one layer of each kind that it has."""
    return with_layers(model, *(int(kind in model.kinds) for kind in ("dense", "moe")))


CONTEXT_METHODS = ("colossal", "ulysses")


@dataclass
class ParallelSettings:
    """Over how many ranks each dimension is spread."""

    data: int = 1
    """Ranks with different sequences. Experts are spread over these, so ``expert`` costs no ranks of its own."""
    tensor: int = 1
    expert: int = 1
    """Ranks that share one set of experts."""
    pipeline: int = 1
    context: int = 1
    """Ranks that share each sequence."""
    fsdp: int = 1
    """Ranks that share one copy of the parameters; these are data parallel ranks too."""
    context_method: str = "colossal"
    """How attention sees the whole sequence: ``colossal`` gathers keys and values, ``ulysses`` exchanges heads."""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.data * self.tensor * self.context * self.pipeline

    def validate(self, path: str = "parallel", model: ModelSettings | None = None) -> None:
        """Raises ConfigError for sizes that don't fit each other or, where it is given, the model."""
        for name in ("data", "tensor", "expert", "pipeline", "context", "fsdp"):
            _at_least(1, path, name, getattr(self, name))
        if self.context_method not in CONTEXT_METHODS:
            raise ConfigError(f"{path}.context_method", self.context_method, "no such method", CONTEXT_METHODS)
        if self.context == 1 and self.context_method != CONTEXT_METHODS[0]:
            raise ConfigError(f"{path}.context_method", self.context_method, f"has no effect with {path}.context=1")
        per_stage = self.data * self.tensor * self.context
        if per_stage % self.expert:
            why = f"must divide the {per_stage} ranks of a pipeline stage (data * tensor * context)"
            raise ConfigError(f"{path}.expert", self.expert, why)
        if self.data % self.fsdp:
            raise ConfigError(f"{path}.fsdp", self.fsdp, f"must divide {path}.data={self.data}")
        if model is not None:
            self._check_model(path, model)

    def _check_model(self, path: str, model: ModelSettings) -> None:
        if set(model.kinds) != {"dense"} and model.num_experts % self.expert:
            why = f"the model's {model.num_experts} experts can't be spread evenly over this many ranks"
            raise ConfigError(f"{path}.expert", self.expert, why, _divisors(model.num_experts))
        if model.family == REFERENCE:
            self._check_reference(path)

    def _check_reference(self, path: str) -> None:
        for name in ("tensor", "context", "fsdp"):
            if getattr(self, name) != 1:
                why = "the reference model is spread over data, expert and pipeline ranks only"
                raise ConfigError(f"{path}.{name}", getattr(self, name), why, (1,))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _at_least(least: int, path: str, name: str, value: float) -> None:
    if value < least:
        raise ConfigError(f"{path}.{name}", value, f"must be at least {least}")
