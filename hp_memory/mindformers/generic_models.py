"""PyNative models made of MindFormers' generic GPT spec, for families that no MindFormers release has a class for.

Importing this module registers them under names of ours. A class says which of MindFormers' config classes it takes and
what the family's blocks are; all the rest is ``GPTModel``.
"""

from __future__ import annotations

from typing import Any

from mindformers.models.glm4_moe.utils import Glm4MoePreTrainedModel
from mindformers.models.qwen3.utils import Qwen3PreTrainedModel
from mindformers.models.qwen3_moe.utils import Qwen3MoePreTrainedModel
from mindformers.parallel_core.utils.model_mixin import TrainModelMixin
from mindformers.pynative.base_models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
from mindformers.pynative.base_models.gpt.gpt_model import GPTModel
from mindformers.pynative.base_models.gpt.parallelize import parallelize_gptmodel
from mindformers.pynative.distributed.parallelize import register_parallelize
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore import Tensor

# What the Trainer calls on a model and the GPTModel inside answers.
_FORWARDED = (
    "_update_expert_bias",
    "get_index_loss",
    "get_load_balancing_loss",
    "get_mtp_loss",
    "reset_model_temporary_tensors",
)


class _Width(int):
    """A hidden size that MindFormers' attention takes for a multiple of the heads.

    It refuses others, from when a head was ``hidden_size / num_heads`` wide. Its weights are ``kv_channels`` wide now,
    and GLM-4.5 has 96 heads of 128 beside a hidden size of 5120.
    """

    heads = 0

    def __mod__(self, other: int) -> int:
        return 0 if other == self.heads else int(self) % other


class _Generic(TrainModelMixin):
    """A ``GPTModel`` under the interface that the Trainer has for a model class."""

    normed_queries_and_keys = True

    def __init__(self, config: Any, **stage: Any) -> None:
        super().__init__(config, auto_prefix=False)
        c = self.convert_to_transformer_config(config)
        c.qk_layernorm = self.normed_queries_and_keys
        c.hidden_size = _Width(c.hidden_size)
        c.hidden_size.heads = c.num_attention_heads
        self.model = GPTModel(
            config=c,
            transformer_layer_spec=self.block_spec(c),
            vocab_size=c.vocab_size,
            max_sequence_length=c.max_position_embeddings,
            position_embedding_type=c.position_embedding_type,
            rotary_base=c.rotary_base,
            share_embeddings_and_output_weights=c.tie_word_embeddings,
            layer_start=stage.get("layer_start", 0),
            layer_end=stage.get("layer_end"),
            stage_idx=stage.get("stage_idx", 0),
            vp_size=stage.get("vp_size", 1),
        )

    def block_spec(self, config: Any) -> Any:
        """MindFormers' spec of the blocks."""
        return get_gpt_decoder_block_spec(config)

    def construct(
        self, decoder_input: Tensor = None, input_ids: Tensor = None, labels: Tensor = None, **inputs: Any
    ) -> Any:
        # A pipeline stage gives the stage before's output by position, as to MindFormers' own models.
        return self.model(decoder_input=decoder_input, input_ids=input_ids, labels=labels, **inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name) if name in _FORWARDED else super().__getattr__(name)


@register_parallelize(parallelize_gptmodel)
@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class HPMemoryQwen3MoeForCausalLM(_Generic, Qwen3MoePreTrainedModel):
    """Grouped-query attention with normed queries and keys, softmax router, no shared expert."""


@register_parallelize(parallelize_gptmodel)
@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class HPMemoryGlm4MoeForCausalLM(_Generic, Glm4MoePreTrainedModel):
    """GLM-4.5: grouped-query attention with normed queries and keys, sigmoid router, shared expert, MTP."""


@register_parallelize(parallelize_gptmodel)
@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class HPMemoryLlamaForCausalLM(_Generic, Qwen3PreTrainedModel):
    """Llama: dense blocks of grouped-query attention without norms of queries and keys, by Qwen3's config class."""

    normed_queries_and_keys = False

    def block_spec(self, config: Any) -> Any:
        return get_gpt_layer_local_spec(normalization=config.normalization, qk_layernorm=False)
