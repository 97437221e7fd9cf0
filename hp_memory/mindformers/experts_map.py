"""The way through MindFormers' experts as one method per region, each of which can be wrapped on its own.

MindFormers makes both ``GroupedMatmul`` objects inside ``GroupedMLP.experts_forward`` and takes gating and activation
between them: no attribute holds a region. ``ExpertsPath`` computes the same with the same operations; the casts of the
weights stay outside its regions, so that saving a grouped matmul never keeps a half-precision copy of the experts.
"""

from __future__ import annotations

from mindspore import Tensor

from hp_memory.mindformers.seams import Part


class ExpertsPath(Part):
    """In place of ``GroupedMLP.experts_forward``."""

    METHOD = "experts_forward"
    KNOWN = (
        "DTensor GroupedMatmul activation_func activation_type cast chunk compute_dtype dtype gated_linear_unit "
        "isinstance mul reshape shape to_local weight1 weight2"
    )

    def forward(self, tokens: Tensor, ends: Tensor) -> Tensor:
        """Tokens (R, H) ordered by expert, row totals (E,): outputs (R, H) in the type of ``tokens``."""
        experts = self.cell
        w1, w2 = (self._local(experts.cast(w, experts.compute_dtype)) for w in (experts.weight1, experts.weight2))
        return experts.cast(self.path(experts.cast(tokens, experts.compute_dtype), w1, w2, ends), tokens.dtype)

    def path(self, x: Tensor, w1: Tensor, w2: Tensor, ends: Tensor) -> Tensor:
        """``gmm.up`` to ``gmm.down`` as one body."""
        return self.gmm_down(self.act(self.gmm_up(x, w1, ends)), w2, ends)

    def gmm_up(self, x: Tensor, w1: Tensor, ends: Tensor) -> Tensor:
        """First grouped matmul: (R, H) to (R, 2F), or (R, F) without gating."""
        return self._grouped_matmul(x, w1, ends)

    def act(self, h: Tensor) -> Tensor:
        """Gating and activation: (R, 2F) or (R, F) to (R, F)."""
        experts = self.cell
        if not experts.gated_linear_unit:
            return experts.activation_func(h)
        if experts.activation_type == "fusedswiglu":
            return experts.activation_func(h, -1).reshape((-1, h.shape[-1] // 2))
        gate, up = experts.chunk(h, 2, -1)
        return experts.mul(experts.activation_func(gate), up)

    def gmm_down(self, h: Tensor, w2: Tensor, ends: Tensor) -> Tensor:
        """Second grouped matmul: (R, F) to (R, H)."""
        return self._grouped_matmul(h, w2, ends)

    def _grouped_matmul(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        # The name is looked up where MindFormers looks it up: a CPU stand-in is found too.
        kernel = self.module.GroupedMatmul(split_item=3, group_type=0)
        return kernel([x], [weight], None, None, None, None, None, ends)[0]

    def _local(self, weight: Tensor) -> Tensor:
        return weight.to_local() if isinstance(weight, self.module.DTensor) else weight
