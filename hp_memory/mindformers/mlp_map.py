"""MindFormers' dense MLP and shared experts as one method per region."""

from __future__ import annotations

from mindspore import Tensor

from hp_memory.mindformers.seams import Part

# Sizes in the docstrings: S positions, B sequences, F inner width.


class _Mlp(Part):
    """Gate and value are interleaved in the rows of the first matrix."""

    KNOWN = (
        "activation_func activation_type gated_linear_unit linear_fc1 linear_fc2 mul reshape shape split transpose "
        "use_clamped_swiglu"
    )

    def up(self, x: Tensor) -> Tensor:
        """(S, B, H) to (S, B, 2F), or (S, B, F) without gating."""
        return self.cell.linear_fc1(x)

    def act(self, x: Tensor) -> Tensor:
        """Gating and activation: to (S, B, F)."""
        cell = self.cell
        if not cell.gated_linear_unit:
            return cell.activation_func(x)
        shape = (*x.shape[:2], x.shape[2] // 2)
        pairs = cell.reshape(x, (*shape, 2))
        # 2.1 halves along another axis, to the same numbers.
        if cell.use_clamped_swiglu and "use_clamped_swiglu" in self.names:
            return cell.reshape(cell.activation_func(pairs, -1), shape)
        if cell.activation_type == "fusedswiglu":
            return cell.reshape(cell.activation_func(cell.transpose(pairs, 2, 3), -2), shape)
        gate, value = (cell.reshape(half, shape) for half in cell.split(pairs, (1, 1), -1))
        return cell.mul(cell.activation_func(gate), value)


class Mlp(_Mlp):
    """In place of ``MLP.construct``."""

    def forward(self, hidden_states: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """(S, B, H) to (S, B, H)."""
        del input_ids  # MindFormers calls experts alike
        return self.down(self.act(self.up(hidden_states)))

    def down(self, x: Tensor) -> Tensor:
        """(S, B, F) to (S, B, H)."""
        return self.cell.linear_fc2(x)


class SharedExperts(_Mlp):
    """In place of ``SharedExpertMLP.construct``: the same, and a gate over the result where the model has one."""

    KNOWN = _Mlp.KNOWN + (
        " cast compute_dtype construct mul_shared_gate router_dense_type shared_experts_gate sigmoid super "
        "use_shared_expert_gate"
    )

    def forward(self, hidden_states: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """(S, B, H) to (S, B, H)."""
        del input_ids
        return self.down(self.act(self.up(hidden_states)), hidden_states)

    def down(self, x: Tensor, hidden_states: Tensor) -> Tensor:
        """(S, B, F) to (S, B, H), times the gate of ``hidden_states``."""
        cell, out = self.cell, self.cell.linear_fc2(x)
        if not cell.use_shared_expert_gate:
            return out
        gate = cell.sigmoid(cell.shared_experts_gate(cell.cast(hidden_states, cell.router_dense_type)))
        return cell.mul_shared_gate(out, cell.cast(gate, cell.compute_dtype))
