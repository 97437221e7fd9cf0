"""The file's callbacks: ours says the plan, MindFormers' own hold nothing that the figures would show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hp_memory.errors import ConfigError, nearest
from hp_memory.layout import LayoutSettings, ModelFingerprint
from hp_memory.mindformers import plan_request
from hp_memory.mindformers.trainer_yaml.document import Document, Trainer

OURS: Mapping[Trainer, str] = {"pynative": "HPMemoryCallback", "graph": "HPMemoryGraphCallback"}
# MindFormers' own, and those of MindSpore that it registers. They log, save and evaluate.
HARMLESS = (
    *("MFLossMonitor", "CheckpointMonitor", "SummaryMonitor", "ProfileMonitor", "EvalCallBack", "TrainingStateMonitor"),
    *(
        "ColdHotExpertMonitor",
        "ExpertMigrateCallback",
        "MoEDropRateCallback",
        "TopkBiasBalanceCallback",
        "TrainCallBack",
    ),
    *("MaxLogitsMonitor", "MaxLogitsReset", "SDCMonitor", "StressDetectCallBack", "StressTestModelMonitor"),
    *("LossMonitor", "TimeMonitor", "ModelCheckpoint", "LearningRateScheduler", "SummaryCollector", "LambdaCallback"),
    *(
        "EarlyStopping",
        "ReduceLROnPlateau",
        "History",
        "OnRequestExit",
        "BackupAndRestore",
        "FlopsUtilizationCollector",
    ),
    *("TrainFaultTolerance", "CheckpointConfig", "RunContext", "Callback"),
    "ObsMonitor",  # of earlier releases, in files that are still about
)


def plan_of(document: Document, mark: ModelFingerprint) -> LayoutSettings | None:
    """The layout of our callback; None where there is none. Others are known to be harmless, or noted as errors."""
    found: LayoutSettings | None = None
    for i, entry in enumerate(refuse_unknown(document)):
        if isinstance(entry, Mapping) and entry.get("type") == OURS[document.trainer]:
            found = _layout(document, mark, i, entry)
    return found


def refuse_unknown(document: Document) -> list[Any]:
    """The callbacks; those that are neither ours nor known to be harmless are noted as errors."""
    callbacks = document.get("callbacks", [])
    if not isinstance(callbacks, list):
        document.refuse("callbacks", callbacks, "must be a list of callbacks")
        return []
    ours = OURS[document.trainer]
    for i, entry in enumerate(callbacks):
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        here = ("callbacks", str(i), "type")
        if kind == ours:
            continue
        if kind in OURS.values():
            document.refuse(here, kind, f"belongs to the other Trainer: this file's is {ours}")
        elif kind not in HARMLESS and f"callbacks.{kind}" not in document.ignored:
            near = nearest(kind, (*HARMLESS, ours))
            hint = f"; did you mean {near!r}?" if near else ""
            why = f"isn't a callback that is known{hint} (if it holds no memory: ignore=[callbacks.{kind}])"
            document.refuse(here, kind, why)
    return callbacks


_KEYS = ("type", "plan", "report", "backend", "offload", "host", "layers")


def _layout(document: Document, mark: ModelFingerprint, i: int, entry: Mapping[str, Any]) -> LayoutSettings | None:
    here = ("callbacks", str(i))
    for key in entry:
        if key not in _KEYS:
            document.refuse((*here, str(key)), entry[key], "isn't a key of our callback", _KEYS, meant=str(key))
    if entry.get("offload") is not None:
        document.refuse((*here, "offload"), "...", "acts on compiled graphs; the dry run traces eager code", (None,))
    try:
        return plan_request.layout_of(entry.get("plan", ""), mark, "plan")
    except ConfigError as error:
        document.refuse((*here, "plan"), entry.get("plan", ""), str(error))
        return None
