"""Keys of the graph Trainer's YAML (MindFormers' ``run_mindformer.py`` in graph mode), by section."""

from __future__ import annotations

from hp_memory.mindformers.trainer_yaml.keys import Table, free, ignored, off, only, read, section
from hp_memory.mindformers.trainer_yaml.keys_model import GRAPH_ONLY, MODEL

_CHECKPOINTS = (
    "load_checkpoint load_ckpt_format auto_trans_ckpt transform_process_num src_strategy_path_or_dir "
    "only_save_strategy load_ckpt_async use_legacy_format balanced_load reshard_worker_num resume_training "
    "remote_save_url save_file remove_redundancy"
)
_PROFILE = (
    "profile profile_communication profile_memory init_start_profile profile_start_step profile_stop_step "
    "profile_rank_ids profile_pipeline profile_level mstx"
)
_OTHER = (
    "seed output_dir use_parallel print_separate_loss do_eval eval_step_interval eval_epoch_interval ignore_data_skip "
    "data_skip_steps layer_scale layer_decay lr_scale lr_scale_factor input_data predict_batch_size adapter_id "
    "exclude_cann_cpu train_precision_sync infer_precision_sync postprocess_use_numpy auto_tune autotune_per_step "
    "filepath_prefix eval_callbacks"
)

GRAPH: dict[str, Table] = {
    "": {
        **section("runner_config optimizer model parallel_config parallel recompute_config swap_config"),
        **free("lr_schedule train_dataset_task eval_dataset eval_dataset_task trainer processor metric monitor_config"),
        **free("context runner_wrapper"),
        **read("train_dataset callbacks pretrained_model_dir"),
        **ignored(f"{_CHECKPOINTS} {_PROFILE} {_OTHER}"),
        **only("run_mode", "train", "finetune", why="only training is modelled"),
        **only("use_legacy", False, why="only models with `use_legacy: False` are mapped"),
        **only("micro_batch_interleave_num", 1, why="two batches in flight at once aren't modelled"),
        **off("moe_config", "belongs to legacy models: the keys of model.model_config say it"),
    },
    "runner_config": {
        **read("batch_size gradient_accumulation_steps"),
        **ignored("epochs sink_mode sink_size num_classes stop_step"),
    },
    "optimizer": {
        **read("swap"),
        **only("type", "AdamW", why="only AdamW's states are modelled"),
        **ignored("betas eps weight_decay learning_rate weight_decay_include weight_decay_exclude use_fused"),
    },
    "model": section("model_config")
    | off("arch", "names a legacy model: only models with `use_legacy: False` are mapped"),
    "model.model_config": {**MODEL, **GRAPH_ONLY},
    "parallel_config": {
        **read("data_parallel model_parallel context_parallel expert_parallel pipeline_stage micro_batch_num"),
        **read("use_seq_parallel context_parallel_algo vocab_emb_dp"),
        **only("seq_split_num", 1, why="pieces of a sequence in the pipeline aren't modelled"),
        **only("ulysses_degree_in_cp", 1, why="hybrid context parallelism isn't modelled"),
        **off("optimizer_shard", "is obsolete: parallel.enable_parallel_optimizer says it"),
        **ignored("gradient_aggregation_group mem_coeff"),
    },
    "parallel": {
        **read("enable_parallel_optimizer parallel_optimizer_config pipeline_config"),
        **ignored("full_batch search_mode gradients_mean enable_alltoall strategy_ckpt_save_file strategy_ckpt_config"),
        **ignored("dataset_strategy loss_repeated_mean"),
        **only("parallel_mode", 1, "semi_auto_parallel", why="only semi-automatic parallelism says where tensors are"),
    },
    "recompute_config": {
        **read("recompute select_recompute select_recompute_exclude select_comm_recompute"),
        **read("select_comm_recompute_exclude"),
        **off("recompute_slice_activation", "slices of a replayed layer's input aren't modelled"),
        # Gathered parameters and tensor parallel exchanges: kept or gathered again, they belong to no region.
        **ignored("parallel_optimizer_comm_recompute mp_comm_recompute"),
    },
    "swap_config": {
        **off("swap", "MindFormers' own swap isn't modelled"),
        **ignored("layer_swap op_swap default_prefetch"),  # no effect without `swap`
    },
}
