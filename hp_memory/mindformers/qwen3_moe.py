"""A PyNative Qwen3-MoE, made of MindFormers' generic GPT spec: no MindFormers release has a class for it.

Importing this module registers it as ``HPMemoryQwen3MoeForCausalLM``.
"""

from __future__ import annotations

from typing import Any

from mindformers.models.qwen3_moe.utils import Qwen3MoePreTrainedModel
from mindformers.parallel_core.utils.model_mixin import TrainModelMixin
from mindformers.pynative.base_models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
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


@register_parallelize(parallelize_gptmodel)
@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class HPMemoryQwen3MoeForCausalLM(TrainModelMixin, Qwen3MoePreTrainedModel):
    """Grouped-query attention with normed queries and keys, softmax router, no shared expert."""

    def __init__(self, config: Any, **stage: Any) -> None:
        super().__init__(config, auto_prefix=False)
        c = self.convert_to_transformer_config(config)
        c.qk_layernorm = True
        self.model = GPTModel(
            config=c,
            transformer_layer_spec=get_gpt_decoder_block_spec(c),
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

    def construct(
        self, decoder_input: Tensor = None, input_ids: Tensor = None, labels: Tensor = None, **inputs: Any
    ) -> Any:
        # A pipeline stage gives the stage before's output by position, as to MindFormers' own models.
        return self.model(decoder_input=decoder_input, input_ids=input_ids, labels=labels, **inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name) if name in _FORWARDED else super().__getattr__(name)
