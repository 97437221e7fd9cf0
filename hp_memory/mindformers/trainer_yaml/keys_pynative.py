"""Keys of the PyNative Trainer's YAML, MindFormers 2.0 and 2.1, by section. The model's are in ``keys_model``."""

from __future__ import annotations

from hp_memory.mindformers.trainer_yaml.keys import Table, free, ignored, off, only, read, section
from hp_memory.mindformers.trainer_yaml.keys_model import MODEL, PYNATIVE_ONLY

_NOT_TRACED = "the dry run doesn't trace what it changes"

PYNATIVE: dict[str, Table] = {
    "": {
        **section("training parallelism optimizer train_dataset model monitor context profiler checkpoint"),
        **section("recompute recompute_comm swap"),
        **free("lr_scheduler"),
        **read("callbacks"),
        **off("lora_config", "frozen parameters and adapters aren't modelled"),
        **ignored("pretrained_model_dir"),  # where a Hugging Face config.json is looked for
        # 2.1
        **only("run_mode", "train", why="only training is modelled"),
        **free("inference"),
    },
    "checkpoint": {
        **ignored("enable_save save_path save_max save_interleaved_steps no_save_optim async_save prefix"),
        **ignored(
            "remove_redundancy load_path load_balanced no_load_optim load_worker_number save_global_layout_cache"
        ),
        # 2.1
        **ignored("save_trainable_only base_load_path reshard_worker_num"),
    },
    "training": {
        **read("local_batch_size global_batch_size"),
        **ignored("steps max_norm seed deterministic"),
        # 2.1
        **ignored("use_skip_step_on_nan max_consecutive_skipped_steps"),
        **off("rampup_batch_size", "a batch that grows isn't modelled: give the largest as global_batch_size"),
    },
    "parallelism": {
        **read("data_parallel_shard data_parallel_shard_strategy reshard_after_forward_policy"),
        **read("tensor_parallel context_parallel context_parallel_method expert_parallel pipeline_parallel"),
        **read("pipeline_parallel_layers_per_stage pipeline_parallel_schedule pipeline_parallel_interleave_num"),
        **read("pipeline_parallel_overlap_p2p pipeline_parallel_enable_dxdw_split enable_loss_parallel"),
        **off("cpu_offload", "parameters on the host aren't modelled"),
        **off("dense_fsdp_shard_size", "two degrees of sharding at once aren't modelled"),
        **off("pipeline_parallel_overlap_b_f", "the working sets of two micro-batches at once aren't modelled"),
        **off("context_parallel_async enable_mc2", _NOT_TRACED),
        **off("ulysses_degree_in_cp", "hybrid context parallelism isn't modelled"),
        **only("context_parallel_mask_type", "causal", why=_NOT_TRACED),
        **only("moe_token_dispatcher_type", "alltoall", why="its exchange has one body without regions"),
        # MindFormers overwrites the size with the steps it accumulates; under tensor parallelism it always shares the
        # sequence; messages take the same buffers however they are sent.
        **ignored("pipeline_parallel_microbatch_size sequence_parallel pipeline_parallel_p2p_transport"),
        **ignored("disable_gradient_division npu_nums_per_device"),
        # 2.1
        **off("expert_parallel_async_d2h", _NOT_TRACED),
        **only("expert_parallel_use_safe_tokens", True, why="the rows per expert are counted with its padding"),
    },
    "optimizer": {
        **only("type", "AdamW", why="only AdamW's states are modelled"),
        **ignored("betas eps weight_decay weight_decay_include weight_decay_exclude learning_rate"),
    },
    "train_dataset": {
        **read("dataloader"),
        **ignored("drop_remainder num_parallel_workers prefetch_size numa_enable use_distribute_dataset"),
    },
    "monitor": free("health_checkpoint train_state tensorboard moe_monitor"),
    "context": ignored("mode max_device_memory device_target"),
    "profiler": {
        **ignored("enable_profiling start_step end_step output_path profiler_rank profiler_level mstx profile_memory"),
        **ignored("profile_cpu with_stack"),
    },
    "recompute": read("mode full_recompute_layer select_module exclude_op"),
    "recompute_comm": read("enable select_module"),
    "swap": {
        **off("enable", "MindFormers' own swap isn't modelled"),
        **ignored("default_prefetch layer_swap op_swap"),  # no effect without `enable`
    },
    "model": {**MODEL, **PYNATIVE_ONLY},
}
