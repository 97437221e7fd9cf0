"""A MindFormers YAML as this package's config: for people who have nothing else. Nothing in it is left out silently.

Both kinds are read: the PyNative Trainer's (``parallelism``, ``training``, ``recompute``) and the graph Trainer's
(``parallel_config``, ``runner_config``, ``recompute_config``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hp_memory.errors import ConfigError
from hp_memory.layout import LayoutSettings, build_plan
from hp_memory.mindformers import conflicts
from hp_memory.mindformers.families import SIZES, fingerprint
from hp_memory.mindformers.trainer_yaml import callbacks, check, recompute
from hp_memory.mindformers.trainer_yaml.document import Document, Trainer, load
from hp_memory.mindformers.trainer_yaml.parallelism import Spread, spread_of
from hp_memory.mindformers.trainer_yaml.sizes import ModelRead, model_of


@dataclass(frozen=True)
class Reading:
    """What a file says.

    Attributes:
        document: the file itself.
        model: the model and its dtypes.
        spread: parallel sizes, pipeline, micro-batch.
        layout: the plan of our callback, or MindFormers' own recompute settings.
        modules: with the latter, layers whose selected modules are boundaries of their own: the regions of each.
    """

    document: Document
    model: ModelRead
    spread: Spread
    layout: LayoutSettings
    modules: Mapping[int, tuple[tuple[str, ...], ...]]

    @property
    def name(self) -> str:
        """What a run of it is called."""
        return "".join(c if c.isalnum() or c in "_-" else "_" for c in Path(self.document.file).stem) or "yaml"


# What a layout from elsewhere takes the place of.
_REPLACED = ("swap.enable", "swap_config.swap", "recompute_config.recompute_slice_activation")


def read(
    file: str, devices: int | None = None, ignored: Iterable[str] = (), layout: LayoutSettings | None = None
) -> Reading:
    """Everything in the file that changes memory or time.

    Args:
        file: a training config of either Trainer.
        devices: of the whole job; MindFormers' PyNative Trainer may leave it to the launch.
        ignored: paths of keys that are known to be harmless.
        layout: takes the place of the file's own recompute settings, swap and plan, which then aren't read.

    Raises:
        ConfigErrors: with everything in it that isn't known, isn't modelled, contradicts itself or is missing.
    """
    document = load(file, (*ignored, *(_REPLACED if layout is not None else ())))
    check.check_keys(document)
    model = model_of(document)
    if model is None:
        document.finish()
        raise AssertionError("a model that can't be told is noted as an error")
    spread = spread_of(document, model.model, devices)
    if not document.errors:
        _sound(document, model, spread)
    mark = fingerprint(model.model, spread.parallel)
    modules: Mapping[int, tuple[tuple[str, ...], ...]] = {}
    if layout is None:
        own = recompute.recompute_of(document, mark, spread.pipeline)
        planned = callbacks.plan_of(document, mark)
        _conflicts(document, planned is not None)
        layout, modules = (own.layout, own.modules) if planned is None else (planned, {})
    else:
        callbacks.refuse_unknown(document)
    document.finish()
    build_plan(layout, mark, "layout")
    return Reading(document, model, spread, layout, modules)


def _sound(document: Document, model: ModelRead, spread: Spread) -> None:
    """Notes the first size that doesn't fit the others."""
    checks = (
        lambda: model.model.validate("model"),
        lambda: spread.parallel.validate("parallel", model.model),
        lambda: spread.pipeline.validate("pipeline"),
        lambda: spread.pipeline.layers_of_chunks(model.model.num_layers, "pipeline"),
    )
    for validate in checks:
        try:
            validate()
        except ConfigError as error:
            group, _, name = error.path.partition(".")
            document.refuse(_key_of(document, group, name.partition("[")[0]), error.value, _why(error))
            return


def _why(error: ConfigError) -> str:
    return str(error).partition(f"{error.value!r}: ")[2]


_PARALLEL: dict[Trainer, dict[str, str]] = {
    "pynative": {
        **{"data": "data_parallel_shard", "fsdp": "data_parallel_shard", "tensor": "tensor_parallel"},
        **{"expert": "expert_parallel", "pipeline": "pipeline_parallel", "context": "context_parallel"},
        **{"stages": "pipeline_parallel", "microbatches": "pipeline_parallel", "layouts": "pipeline_parallel"},
    },
    "graph": {
        **{"data": "data_parallel", "fsdp": "data_parallel", "tensor": "model_parallel", "expert": "expert_parallel"},
        **{"pipeline": "pipeline_stage", "context": "context_parallel", "microbatches": "micro_batch_num"},
    },
}


def _key_of(document: Document, group: str, name: str) -> str:
    """The file's key for a setting of ours."""
    if group == "model":
        section = "model.model_config" if document.trainer == "graph" else "model"
        names = next((size.names for size in SIZES if size.ours == name), (name,))
        stated = [key for key in names if document.get(f"{section}.{key}") is not None]
        return f"{section}.{(*stated, *names)[0]}"
    section = "parallel_config" if document.trainer == "graph" else "parallelism"
    key = _PARALLEL[document.trainer].get(name) or (
        "pipeline_stage" if document.trainer == "graph" else f"pipeline_parallel_{name}"
    )
    return f"{section}.{key}"


def _conflicts(document: Document, with_plan: bool) -> None:
    if document.trainer == "graph":
        return
    for conflict in conflicts.found(document.data, with_plan):
        value = document.get(conflict.path)
        document.refuse(conflict.path, value if not isinstance(value, (list, dict)) else "...", conflict.in_words())
