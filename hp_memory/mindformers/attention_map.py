"""MindFormers' attention as one method per region: grouped queries, latent attention, and the kernel in both.

Putting q, k and v in the kernel's order counts as ``attention.rope`` and merging the heads as ``attention.out``: the
kernel then saves nothing but its arguments and results, and a replay of the up-projections makes its arguments again.
"""

from __future__ import annotations

import inspect
from typing import Any

from mindspore import Tensor
from mindspore import dtype as mstype

from hp_memory.errors import InstallError
from hp_memory.mindformers.seams import Part

# Sizes in the docstrings: S positions, B sequences, N heads, N_kv key and value heads, D width of a head.


class Kernel(Part):
    """In place of ``FlashAttention.construct``."""

    KNOWN = (
        "Tensor _merge_heads _update_max_logits alibi_rescale_mul bnsd_transpose bool bsh_transpose cast contiguous "
        "dtype fa_out_transpose flash_attention float16 getattr hasattr input_layout ms mstype reshape scalar_value "
        "shape track_max_attention_logit uint8 use_alibi_mask"
    )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        alibi_mask: Tensor | None = None,
        prefix: Tensor | None = None,
        padding_mask: Tensor | None = None,
        actual_seq_qlen: Any = None,
        actual_seq_kvlen: Any = None,
    ) -> Tensor:
        """q (S, B, N, D), k and v (S, B, N_kv, D), or what an exchange around the kernel made of them."""
        query, key, value, mask, alibi = self.lay_out(query, key, value, attention_mask, alibi_mask)
        out = self.core(
            query=query,
            key=key,
            value=value,
            real_shift=alibi,
            padding_mask=padding_mask,
            attn_mask=mask,
            prefix=prefix,
            actual_seq_qlen=actual_seq_qlen,
            actual_seq_kvlen=actual_seq_kvlen,
        )
        return self.merge(out)

    def lay_out(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, alibi: Any) -> tuple:
        """Region ``attention.rope``: the arguments in the kernel's order, each contiguous."""
        cell = self.cell
        if mask is not None:
            mask = cell.cast(mask, mstype.uint8)
        if cell.input_layout == "TND":
            return query, key, value, mask, alibi
        query, key, value = (self._ordered(x).contiguous() for x in (query, key, value))
        if cell.use_alibi_mask:
            factor = Tensor([1.0 / cell.scalar_value], dtype=mstype.float16)
            alibi = cell.alibi_rescale_mul(alibi, cell.cast(factor, alibi.dtype))
        return query, key, value, mask, alibi

    def _ordered(self, x: Tensor) -> Tensor:
        cell = self.cell
        if cell.input_layout == "BNSD":
            return x if self._in_order() else cell.bnsd_transpose(x, (1, 2, 0, 3))
        if cell.input_layout == "BSH":
            return x if self._in_order() else cell.bsh_transpose(x, (1, 0, 2))
        return cell.reshape(x, (*x.shape[:2], -1))

    def _in_order(self) -> bool:
        """Whether an exchange around the kernel has put the arguments in order."""
        return bool(getattr(self.cell, "_mf_runtime_input_already_in_fa_layout", False))

    def core(self, **arguments: Any) -> Tensor:
        """Region ``attention.core``: the fused operation alone, and its largest logits where they are tracked."""
        cell = self.cell
        largest, _, _, out = cell.flash_attention(**arguments)
        if cell.track_max_attention_logit:
            packed = cell.input_layout == "TND"
            takes = inspect.signature(cell._update_max_logits).parameters
            running = {"running": not packed} if "running" in takes else {}
            cell._update_max_logits(largest, (0, 2) if packed else (0, 2, 3), **running)
        return out

    def merge(self, out: Tensor) -> Tensor:
        """First half of region ``attention.out``: the kernel's result to (S, B, N * D)."""
        cell = self.cell
        if cell.input_layout in ("BNSD", "BSH") and not self._in_order():
            return cell._merge_heads(out) if cell.input_layout == "BNSD" else cell.fa_out_transpose(out, (1, 0, 2))
        return out


class _Attention(Part):
    INNER = ("get_query_key_value_tensors",)

    def __init__(self, cell: Any) -> None:
        super().__init__(cell)
        if not cell.use_flash_attention:
            raise InstallError("attention without the fused kernel (use_flash_attention: False) isn't mapped")
        # 2.1: tensors are a rank's own, and the sequence may be gathered on the way.
        self.local = "rotary_cos_sin" in self.names

    def _told(self, rotary: dict[str, Any]) -> dict[str, Any]:
        """2.1 makes the sines and cosines once for all layers."""
        return {"cos_sin": rotary["rotary_cos_sin"]} if rotary else {}


class GroupedAttention(_Attention):
    """In place of ``SelfAttention.construct``: queries share keys and values in groups."""

    KNOWN = (
        "_cat_prefix _repeat_kv apply_rotary_pos_emb bfloat16 bs_transpose cast compute_dtype core_attention dtype "
        "float16 get_query_key_value_tensors head_dim input_layout k_layernorm kv_num_heads linear_proj linear_qkv "
        "mstype n_rep num_heads q_layernorm reshape reshape_concat sbh2tnd shape split_qkv uint8 "
        "use_flash_attention"
    )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        key_value_states: Tensor | None = None,
        rotary_pos_emb: Tensor | None = None,
        prefix_keys_values: Tensor | None = None,
        actual_seq_len: Any = None,
        mscale: float = 1.0,
        **rotary: Any,
    ) -> Tensor:
        """Hidden states (S, B, H) to (S, B, H)."""
        query, key, value = self.qk_norm(*self.qkv_proj(hidden_states))
        query, key, value = self.rope(query, key, value, rotary_pos_emb, mscale, prefix_keys_values, rotary)
        out = self.cell.core_attention(
            query, key, value, attention_mask, actual_seq_qlen=actual_seq_len, actual_seq_kvlen=actual_seq_len
        )
        return self.out(out, hidden_states)

    def qkv_proj(self, hidden: Tensor) -> tuple:
        """q, k and v (S, B, N_kv, ...), the heads of a group side by side."""
        cell = self.cell
        qkv = cell.cast(cell.linear_qkv(hidden), cell.compute_dtype)
        mixed = cell.reshape_concat(qkv, (*qkv.shape[:2], -1, (cell.n_rep + 2) * cell.head_dim))
        return cell.split_qkv(mixed, (cell.head_dim * cell.n_rep, cell.head_dim, cell.head_dim), 3)

    def qk_norm(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Norms over the width of a head; a model without passes the tensors through."""
        return self._normed(query, self.cell.q_layernorm), self._normed(key, self.cell.k_layernorm), value

    def _normed(self, x: Tensor, norm: Any) -> Tensor:
        return x if norm is None else norm(x.reshape((*x.shape[:2], -1, self.cell.head_dim))).reshape(x.shape)

    def rope(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None,
        mscale: float,
        prefix: Tensor | None,
        rotary: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """First half of region ``attention.rope``: turned by position, in the type the kernel reads."""
        cell = self.cell
        query, key = self._heads(query, cell.num_heads), self._heads(key, cell.kv_num_heads)
        if positions is not None:
            query, key = (
                cell.apply_rotary_pos_emb(x, positions, mscale=mscale, **self._told(rotary)) for x in (query, key)
            )
        key, value = cell._cat_prefix(key, self._heads(value, cell.kv_num_heads), prefix)
        if cell.input_layout == "TND":
            query = cell.sbh2tnd(query, cell.num_heads)
            key, value = (cell.sbh2tnd(x, cell.kv_num_heads) for x in (key, value))
        halves = (mstype.float16, mstype.bfloat16)
        return tuple(x if x.dtype in halves else cell.cast(x, mstype.float16) for x in (query, key, value))

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        # 2.1 has a tensor parallel rank's heads here, 2.0 a distributed tensor with all of them.
        count = -1 if self.local else heads
        return self.cell.reshape(x, (*x.shape[:2], count, self.cell.head_dim))

    def out(self, context: Tensor, hidden: Tensor) -> Tensor:
        """Second half of region ``attention.out``: the projection, in the type of ``hidden``."""
        cell = self.cell
        seq, batch = hidden.shape[:2]
        if cell.input_layout == "TND":
            context = cell.bs_transpose(cell.reshape(context, (batch, seq, -1)), (1, 0, 2))
        else:
            context = cell.cast(context, cell.compute_dtype)
        return cell.cast(cell.linear_proj(context), hidden.dtype)


class LatentAttention(_Attention):
    """In place of ``MLASelfAttention.construct``: q and k, v are compressed to a low rank and projected up again."""

    KNOWN = (
        "DTensor NotImplementedError ValueError apply_rotary_emb_k apply_rotary_emb_q cast cat compute_dtype config "
        "contiguous core_attention device_mesh distribute_tensor dtype get_query_key_value_tensors hasattr "
        "input_layout isinstance k_handoff k_layernorm kv_lora_rank linear_kvb linear_proj linear_qb linear_qkv "
        "multi_latent_attention num_attention_heads placements q_handoff q_head_dim q_layernorm q_rank qk_head_dim "
        "qk_pos_emb_head_dim reshape rotary_interleaved sbh2tnd shape split tile_kv transpose "
        "use_eod_attn_mask_compression use_flash_attention v_handoff v_head_dim"
    )

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        rotary_pos_emb: Tensor | None = None,
        prefix_keys_values: Tensor | None = None,
        pad_zeros: Tensor | None = None,
        actual_seq_len: Any = None,
        mscale: float = 1.0,
        **rotary: Any,
    ) -> Tensor:
        """Hidden states (S, B, H) to (S, B, H)."""
        if prefix_keys_values or pad_zeros:
            raise NotImplementedError("prefix_keys_values and pad_zeros aren't supported by latent attention")
        cell = self.cell
        query, key, value = self.qkv(x, rotary_pos_emb, mscale, rotary)
        lengths = {}
        if cell.use_eod_attn_mask_compression or (self.local and cell.input_layout == "TND"):
            lengths = {"actual_seq_qlen": actual_seq_len, "actual_seq_kvlen": actual_seq_len}
        context = cell.core_attention(query, key, value, attention_mask, **lengths)
        return self.out(context, x, query.shape[0] if self.local else x.shape[0])

    def qkv(self, x: Tensor, positions: Tensor | None, mscale: float, rotary: dict[str, Any]) -> tuple:
        """``attention.qkv_proj`` to ``attention.rope`` as one body."""
        q, kv, k_pe = self.qkv_proj(x)
        query = self.q_rope(*self.q_up(self.q_norm(q)), positions, mscale, rotary)
        k_nope, value = self.kv_up(self.kv_norm(kv))
        return query, self.k_rope(k_nope, k_pe, positions, mscale, rotary), value

    def qkv_proj(self, x: Tensor) -> tuple:
        """Down-projections in one: compressed q (S, B, r_q), compressed k and v (S, B, r_kv), k's own (S, B, D_rope).

        Without a rank for q it is projected to its heads here.
        """
        cell = self.cell
        return cell.split(cell.linear_qkv(x), [cell.q_rank, cell.kv_lora_rank, cell.qk_pos_emb_head_dim], dim=-1)

    def q_norm(self, q: Tensor) -> Tensor:
        return q if self.cell.q_layernorm is None else self.cell.q_layernorm(q)

    def q_up(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The part of each head that has no position (S, B, N, D_nope), and the one that has (S, B, N, D_rope)."""
        cell = self.cell
        if cell.q_layernorm is not None:
            q = cell.linear_qb(q)
        heads = cell.reshape(q, (*q.shape[:2], -1 if self.local else cell.num_attention_heads, self._width(q)))
        return cell.split(heads, [cell.qk_head_dim, cell.qk_pos_emb_head_dim], dim=-1)

    def _width(self, q: Tensor) -> int:
        return self.cell.q_head_dim if self.local else -1

    def q_rope(self, nope: Tensor, pe: Tensor, positions: Tensor | None, mscale: float, rotary: dict) -> Tensor:
        """q (S, B, N, D_nope + D_rope), in the type the kernel reads."""
        cell = self.cell
        pe = self._turned(cell.apply_rotary_emb_q, pe, positions, mscale, rotary)
        return cell.q_handoff(self._typed(cell.cat([nope, pe], 3)))

    def kv_norm(self, kv: Tensor) -> Tensor:
        return self.cell.k_layernorm(kv)

    def kv_up(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """k's part without position (S, B, N, D_nope) and v (S, B, N, D_v)."""
        cell = self.cell
        kv = cell.linear_kvb(kv)
        count = -1 if self.local else cell.num_attention_heads
        heads = cell.reshape(kv, (*kv.shape[:2], count, cell.qk_head_dim + cell.v_head_dim))
        nope, value = cell.split(heads, [cell.qk_head_dim, cell.v_head_dim], dim=-1)
        return nope, cell.v_handoff(self._typed(value))

    def k_rope(self, nope: Tensor, pe: Tensor, positions: Tensor | None, mscale: float, rotary: dict) -> Tensor:
        """k (S, B, N, D_nope + D_rope): the part with position is the same for all heads."""
        cell = self.cell
        pe = cell.reshape(pe, (*pe.shape[:2], 1, cell.qk_pos_emb_head_dim))
        pe = self._turned(cell.apply_rotary_emb_k, pe, positions, mscale, rotary)
        pe = cell.tile_kv(pe, (1, 1, nope.shape[2] if self.local else cell.num_attention_heads, 1))
        return cell.k_handoff(self._typed(cell.cat([nope, self._placed_like(nope, pe)], 3)))

    def _placed_like(self, nope: Tensor, pe: Tensor) -> Tensor:
        # 2.0: under tensor parallelism nope has this rank's heads, pe all of them.
        distributed = getattr(self.module, "DTensor", None)
        if self.local or distributed is None or not (isinstance(nope, distributed) and isinstance(pe, distributed)):
            return pe
        if nope.placements == pe.placements:
            return pe
        return self.module.distribute_tensor(pe, nope.device_mesh, nope.placements)

    def _turned(self, turn: Any, x: Tensor, positions: Tensor | None, mscale: float, rotary: dict) -> Tensor:
        if positions is None:
            return x
        config = self.cell.config
        return turn(
            x,
            positions,
            mscale=mscale,
            rotary_interleaved=config.rotary_interleaved,
            multi_latent_attention=config.multi_latent_attention,
            **self._told(rotary),
        )

    def _typed(self, x: Tensor) -> Tensor:
        x = self.cell.cast(x, self.cell.compute_dtype)
        return self.cell.sbh2tnd(x) if self.cell.input_layout == "TND" else x

    def out(self, context: Tensor, x: Tensor, rows: int) -> Tensor:
        """Second half of region ``attention.out``: the projection; ``rows`` counts positions."""
        cell, batch = self.cell, x.shape[1]
        if self.local and cell.input_layout == "TND":
            context = cell.transpose(cell.reshape(context, (batch, rows // batch, -1)), 0, 1).contiguous()
        elif cell.use_eod_attn_mask_compression:
            context = cell.transpose(cell.reshape(context, (batch, x.shape[0], -1)), 0, 1)
        else:
            context = cell.reshape(context, (rows, batch, -1)).contiguous()
        out = cell.linear_proj(context)
        return out if self.local else cell.cast(out, x.dtype)
