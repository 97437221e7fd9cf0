"""Which names MindFormers 2.0 imports from which HyperParallel module. Data only."""

from __future__ import annotations

ROOT = "hyper_parallel"

MODULES: dict[str, tuple[str, ...]] = {
    "": (
        "DFunction",
        "DTensor",
        "DeviceMesh",
        "PipelineStage",
        "SkipDTensorDispatch",
        "distribute_tensor",
        "init_device_mesh",
        "shard_module",
    ),
    ".core": (),
    ".core.activation_checkpoint": ("CheckpointPolicy", "SwapManager", "checkpoint_wrapper", "swap_wrapper"),
    ".core.context_parallel": (),
    ".core.context_parallel.async_context_parallel": ("AsyncContextParallel",),
    ".core.context_parallel.context_parallel": ("ContextParallel",),
    ".core.distributed_checkpoint": ("get_current_layout", "get_global_layout"),
    ".core.dtensor": ("DTensor", "distribute_tensor"),
    ".core.dtensor.dtensor": ("DTensor", "SkipDTensorDispatch", "distribute_tensor"),
    ".core.dtensor.layout": ("_infer_slice_area_by_rank",),
    ".core.dtensor.placement_types": ("Partial", "Placement", "Replicate", "Shard"),
    ".core.dtensor.redistribute_infer": ("DevMat", "RedistributionOperatorInfer"),
    ".core.fully_shard": (),
    ".core.fully_shard.api": ("HSDPModule", "MixedPrecisionPolicy", "fully_shard"),
    ".core.fully_shard.utils": ("CPUOffloadPolicy", "OffloadPolicy"),
    ".core.pipeline_parallel": ("Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B"),
    ".core.pipeline_parallel.comm_compute_overlap": ("CommComputeOverlap",),
    ".core.pipeline_parallel.hook_coordinator": ("HookCoordinator", "HookRole"),
    ".core.pipeline_parallel.scheduler": ("MetaStepType",),
    ".core.shard": (),
    ".core.shard.sharding_plan": ("ShardingPlan",),
    ".platform": ("get_platform",),
    ".platform.mindspore": (),
    ".platform.mindspore.autograd_compat": ("enable_mindspore_backward_compat",),
}
