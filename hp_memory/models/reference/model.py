"""A small decoder-only MoE language model: blocks, and what stands before and after them."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from hp_memory.kernels import devices
from hp_memory.kernels.groups import ALONE, Group
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.reference.attention import Attention
from hp_memory.models.reference.init import initialise
from hp_memory.models.reference.layers import RmsNorm, matrix
from hp_memory.models.reference.mlp import Mlp
from hp_memory.models.reference.moe import Moe
from hp_memory.models.settings import ModelSettings, ParallelSettings


class Block(nn.Cell):
    """One transformer layer on rows (B*S, H): attention, then ``moe`` or a dense ``mlp``."""

    def __init__(self, settings: ModelSettings, kind: str, group: Group) -> None:
        super().__init__()
        self.kind = kind
        self.attention_norm = RmsNorm(settings.hidden_size, settings.norm_eps)
        self.attention = Attention(settings)
        self.mlp_norm = RmsNorm(settings.hidden_size, settings.norm_eps)
        if kind == "moe":
            self.moe = Moe(settings, group)
        else:
            self.mlp = Mlp(settings.hidden_size, settings.ffn_size)

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        feed_forward = self.moe if self.kind == "moe" else self.mlp
        return x + feed_forward(self.mlp_norm(x))


class Model(nn.Cell):
    """Some consecutive layers of the language model, with the embedding and the head where this part has them.

    Attributes:
        layers: the blocks of this part.
        fingerprint_digest: tells an installation whether a plan is for this model.
        layer_ids: their global layer ids. Parameters are named by these, ``layers.<id>.…``.
    """

    def __init__(
        self, settings: ModelSettings, group: Group, layer_ids: range, *, embedding: bool = True, head: bool = True
    ) -> None:
        super().__init__()
        self.settings, self.layer_ids = settings, layer_ids
        self.fingerprint_digest = fingerprint(settings).digest
        self.has_embedding, self.has_head = embedding, head
        if embedding:
            self.embedding = matrix("embedding", settings.vocab_size, settings.hidden_size)
        self.layers = nn.CellList([Block(settings, settings.kinds[i], group) for i in layer_ids], auto_prefix=False)
        for i, block in zip(layer_ids, self.layers, strict=True):
            block.update_parameters_name(f"layers.{i}.")
        if head:
            self.norm = RmsNorm(settings.hidden_size, settings.norm_eps)
            self.head = matrix("head", settings.hidden_size, settings.vocab_size)

    def construct(self, x: Tensor) -> Tensor:
        """Token ids (B, S) int32, or rows (B*S, H) in a part without embedding, to logits (B*S, V) or rows (B*S, H)."""
        if self.has_embedding:
            x = ops.gather(self.embedding, x.reshape(-1), 0)
        for block in self.layers:
            x = block(x)
        return mint.matmul(self.norm(x), self.head) if self.has_head else x

    def take_expert_loads(self) -> list[np.ndarray]:
        """Tokens of this rank per expert (E,) since the last call, for each MoE layer of this part."""
        return [block.moe.router.take_load() for block in self.layers if block.kind == "moe"]


def build(
    settings: ModelSettings,
    parallel: ParallelSettings,
    *,
    group: Group = ALONE,
    layers: range | None = None,
    embedding: bool = True,
    head: bool = True,
    seed: int = 0,
) -> Model:
    """The model, or the part of it that a pipeline stage holds, with parameters drawn from ``seed``.

    Equal seeds give every part, at every expert parallel size, its share of one and the same model.

    Args:
        group: the ranks that share the experts, ``parallel.expert`` of them.
        layers: global layer ids of this part; all by default.
        embedding: whether this part turns token ids into rows.
        head: whether this part ends in logits.

    Raises:
        ConfigError: for settings that don't fit each other.
        ValueError: for a group of another size than ``parallel.expert``.
    """
    settings.validate()
    parallel.validate("parallel", settings)
    if group.size != parallel.expert:
        raise ValueError(f"the experts are to be shared by {parallel.expert} ranks, the group has {group.size}")
    chosen = range(settings.num_layers) if layers is None else layers
    model = Model(settings, group, chosen, embedding=embedding, head=head)
    initialise(model, settings, group, seed)
    return model


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in nats: logits (B*S, V), labels (B, S) or (B*S,) int32."""
    return devices.kernels().cross_entropy(logits, labels.reshape(-1).astype(ms.int32))
