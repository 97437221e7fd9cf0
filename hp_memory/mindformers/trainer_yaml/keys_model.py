"""Keys of the model section, for both Trainers: MindFormers' names of everything in its TransformerConfig.

The sizes among them are in ``families.SIZES``, with their names in both directions.
"""

from __future__ import annotations

from hp_memory.mindformers.families import SIZES
from hp_memory.mindformers.trainer_yaml.keys import Key, Table, ignored, off, only, read

_SHAPE = "the dry run traces the model without it"
_FROM_SECTIONS = "is set by the Trainer: the sections beside `model` say it"
_F32 = ("float32", "fp32")

_SIZE_KEYS: Table = dict.fromkeys((name for size in SIZES for name in size.names), Key("read"))

# What fixes the shapes or the operations of a block.
_BUILT: Table = {
    **read("model_type type architectures params_dtype param_init_type compute_dtype hidden_act moe_layer_freq"),
    **read("moe_shared_expert_intermediate_size use_attn_mask_compression offset qk_layernorm"),
    **read("use_qk_norm"),
    **only("gated_linear_unit", True, why=_SHAPE),
    **only("multi_latent_attention", True, why=_SHAPE, part="mla"),
    **only("use_flash_attention fused_norm use_attention_mask pre_process post_process", True, why=_SHAPE),
    **only("untie_embeddings_and_output_weights", True, why="one weight for embedding and head isn't modelled"),
    **off("tie_word_embeddings", "one weight for embedding and head isn't modelled"),
    **off("add_bias_linear add_mlp_fc1_bias_linear add_mlp_fc2_bias_linear", "biases aren't modelled"),
    **only("hidden_dropout attention_dropout", 0.0, why="the masks of dropout aren't modelled"),
    **only("normalization", "RMSNorm", why=_SHAPE),
    **only("layernorm_compute_dtype rotary_dtype embedding_params_dtype", *_F32, why=_SHAPE),
    **only("router_dense_type moe_router_dtype", *_F32, why=_SHAPE, part="moe"),
    **only("position_embedding_type extend_method", "rope", "yarn", "partial_rope", "none", "None", why=_SHAPE),
    **only("input_layout", "BNSD", why=_SHAPE),
    **only("moe_grouped_gemm use_gmm", True, why=_SHAPE, part="moe"),
    **only("moe_token_dispatcher_type", "alltoall", why="its exchange has one body without regions", part="moe"),
    **off("moe_permute_fusion use_fused_ops_permute apply_rope_fusion use_fused_rope", _SHAPE),
    **off(
        "is_dynamic use_alibi_mask use_eod_attn_mask_compression use_ring_attention use_eod_reset sparse_mode", _SHAPE
    ),
    **off(
        "fp16_lm_cross_entropy apply_residual_connection_post_layernorm sandwich_norm track_max_attention_logit", _SHAPE
    ),
    **off("activation_func_clamp_value moe_n_hash_layers nope_layer_interval experimental_attention_variant", _SHAPE),
    **off("window_size window_attn_skip_freq num_encoder_layers num_decoder_layers enable_hyper_connections", _SHAPE),
    **off("use_shared_expert_gating moe_shared_expert_overlap comp_comm_parallel group_wise_a2a", _SHAPE),
    **off("moe_apply_probs_on_input enable_expert_relocation use_fused_mla csa_compress_ratios", _SHAPE),
    **off("chunk_loss_num", "a loss in pieces isn't modelled"),
    **off("moe_z_loss_coeff z_loss_factor", "this loss isn't traced"),
    **off("moe_expert_capacity_factor capacity_factor", "rows dropped by capacity aren't modelled"),
    **off("pet_config moe_config quantization quantization_config rl_config", "isn't modelled"),
    **off("dsa_index_share_topk_offload dsa_warmup_layerwise_backward enable_hc_head", _SHAPE),  # 2.1
}

_NOT_HERE: Table = {
    **off("parallel_config data_parallel_size tensor_model_parallel_size model_parallel data_parallel", _FROM_SECTIONS),
    **off("expert_model_parallel expert_tensor_parallel_size", _FROM_SECTIONS),
    **only("pipeline_model_parallel_size pipeline_stage context_parallel_size context_parallel", 1, why=_FROM_SECTIONS),
    **only("expert_model_parallel_size expert_parallel seq_split_num micro_batch_num", 1, why=_FROM_SECTIONS),
    **only("hierarchical_context_parallel_sizes ulysses_degree_in_cp", 1, why=_FROM_SECTIONS),
    **off(
        "sequence_parallel use_seq_parallel cpu_offloading swap layer_swap op_swap cpu_offloading_num_layers",
        _FROM_SECTIONS,
    ),
    **off("cpu_offloading_num_layers recompute select_recompute select_comm_recompute", _FROM_SECTIONS),
    **off(
        "recompute_slice_activation select_recompute_exclude select_comm_recompute_exclude optimizer_shard",
        _FROM_SECTIONS,
    ),
    **ignored(
        "context_parallel_algo cp_comm_type parallel_optimizer_comm_recompute mp_comm_recompute default_prefetch"
    ),
    **ignored("gradient_aggregation_group vocab_emb_dp batch_size mem_coeff"),
}

_HARMLESS: Table = {
    # Tokens, names, generation
    **ignored("pad_token_id bos_token_id eos_token_id ignore_token_id actual_vocab_size _name_or_path tokenizer_class"),
    **ignored(
        "checkpoint_name_or_path mindformers_version pretrained_model_dir is_encoder_decoder do_sample top_k top_p"
    ),
    **ignored(
        "is_sample_acceleration temperature repetition_penalty max_decode_length use_cache use_past monitor_config"
    ),
    **ignored("dataset_config input_sliced_sig return_extra_loss model_architecture print_separate_loss multiple_of"),
    **ignored("ffn_dim_multiplier seed keys_to_ignore_at_inference"),
    # Inference
    **ignored("block_size num_blocks dispatch_global_max_bs attn_reduce_scatter attn_allgather attn_allreduce"),
    **ignored("ffn_reduce_scatter ffn_allgather ffn_allreduce use_alltoall coeff"),
    # Positions, initial values, numerics without tensors of their own
    **ignored("max_position_embeddings original_max_position_embeddings rope_scaling use_rope_scaling rope_type"),
    **ignored("rotary_percent rotary_scaling_factor scaling_factor factor beta_fast beta_slow mscale mscale_all_dim"),
    **ignored("rotary_seq_len_interpolation_factor rotary_cos_format rotary_interleaved partial_rotary_factor"),
    **ignored("init_method output_layer_init_method param_init_std_rules softmax_scale apply_query_key_layer_scaling"),
    **ignored(
        "softmax_compute_dtype attention_softmax_in_fp32 mask_func_type activation_func calculate_per_token_loss"
    ),
    **ignored("bias_dropout_fusion disable_lazy_inline use_rotary_position_ids"),
    # Traced with either value, with the same result: how query, key and value weights are laid out
    **ignored("mla_qkv_concat qkv_concat use_contiguous_weight_layout_attention use_interleaved_weight_layout_mlp"),
    # Bias vectors of the attention: too small to show
    **ignored("attention_bias add_qkv_bias qkv_has_bias"),
    # Routing: how scores are made and balanced, not how many rows there are
    **ignored("norm_topk_prob topk_method use_fused_ops_topkrouter moe_router_fusion moe_router_pre_softmax"),
    **ignored("moe_router_enable_expert_bias balance_via_topk_bias moe_router_bias_update_rate topk_bias_update_rate"),
    **ignored("moe_router_load_balancing_type moe_router_force_expert_balance moe_token_drop_policy enable_sdrop"),
    **ignored("use_pad_tokens enable_gmm_safe_tokens npu_nums_per_device callback_moe_droprate print_expert_load"),
    **ignored("expert_relocation_initial_iteration expert_relocation_freq comp_comm_parallel_degree"),
    **ignored("mtp_loss_scaling_factor mtp_loss_factor router_aux_loss_coef aux_loss_alpha seq_aux ep_size"),
    # No effect without the variant they belong to, which is refused
    **ignored(
        "dsa_indexer_n_heads dsa_indexer_head_dim dsa_indexer_topk dsa_indexer_loss_coeff index_n_heads index_topk"
    ),
    **ignored("dsa_indexer_use_sparse_loss index_head_dim num_residual_streams mhc_sinkhorn_iterations use_fused_mhc"),
    **ignored("mhc_init_gating_factor mhc_layernorm_epsilon csa_window_size csa_compress_rotary_base csa_dense_mode"),
    **ignored("o_groups o_lora_rank apply_dsa_kernel_fusion"),
    **ignored("dsa_index_share_loss dsa_index_skip_topk_offset dsa_index_topk_freq dsa_indexer_types"),  # 2.1
    # Of a Hugging Face config.json; MindFormers drops them
    **ignored("decoder_sparse_step mlp_only_layers max_window_layers output_router_logits sliding_window"),
    **ignored("use_sliding_window layer_types"),
}

MODEL: Table = {**_HARMLESS, **_NOT_HERE, **_BUILT, **_SIZE_KEYS}

# The PyNative model reads neither: it has no fused form of its own beside `hidden_act: fusedswiglu`, adds in the
# compute dtype, and takes its pipeline from `parallelism`.
PYNATIVE_ONLY: Table = {
    **ignored("bias_swiglu_fusion use_fused_swiglu fp32_residual_connection"),
    **off("pp_interleave_num virtual_pipeline_model_parallel_size", _FROM_SECTIONS),
    **only("offset", 0, why=_FROM_SECTIONS),
}
# The graph model casts each block's output back to the compute dtype, so what lies between blocks is no wider.
GRAPH_ONLY: Table = {
    **read("bias_swiglu_fusion use_fused_swiglu pp_interleave_num virtual_pipeline_model_parallel_size"),
    **ignored("fp32_residual_connection"),
}
