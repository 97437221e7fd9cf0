"""The callback of MindFormers' PyNative Trainer: installs a plan, checks that it holds, reports what it cost.

In a MindFormers config::

    callbacks:
      - type: HPMemoryCallback
        plan: op_exclude
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindformers.pynative.callback import TrainerCallback
from mindformers.tools.logger import logger
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister

from hp_memory.activation import observe
from hp_memory.errors import InstallError
from hp_memory.host.window import Window
from hp_memory.install import Receipt, install, receipt_of, window_of
from hp_memory.layout import ActivationPlan
from hp_memory.mindformers import agreement, conflicts, hyper_offload, plan_request, trainer_hook, verify
from hp_memory.mindformers import backend as backends
from hp_memory.mindformers.families import fingerprint, settings_of
from hp_memory.mindformers.recorder import Recorder
from hp_memory.mindformers.region_map import blocks_of, gpt_model
from hp_memory.models.settings import ParallelSettings
from hp_memory.offload.apply import settings_from
from hp_memory.runs import ranks
from hp_memory.runs.variables import RUN_DIR


@MindFormerRegister.register(MindFormerModuleType.CALLBACK)
class HPMemoryCallback(TrainerCallback):
    """Applies an activation plan to the model that a Trainer trains.

    Args:
        plan: a layout's settings or a saved plan, inline or as the path of a file, or the name of a recipe or layout.
        report: file for the receipt, the checked counts and the memory report, as JSON; null writes none. With several
            ranks each writes its own, ``<name>_rank_<rank>.json``.
        backend: whose wrappers are used: ``auto``, ``native`` or ``hyper_parallel``.
        offload: HyperOffload's settings as a mapping, for a model with a jitted graph inside; null for none.
        host: how the plan's offloaded regions use the host (``memory``, ``min_bytes``, ``prefetch``, ``pending``).
    """

    def __init__(
        self,
        plan: str | Mapping[str, Any],
        report: str | None = None,
        backend: str = "auto",
        offload: Mapping[str, Any] | None = None,
        host: Mapping[str, Any] | None = None,
    ) -> None:
        self.request = plan
        self.report = report
        self.offload = offload
        self.host = plan_request.host_settings(host or {}, "callbacks.HPMemoryCallback.host")
        self.backend = backends.choose(backend, backends.probe())
        self.plan: ActivationPlan | None = None
        self.receipts: list[Receipt] = []
        self.counts: dict[str, Any] = {}
        # Started by our launcher, it says how far it is; whoever makes the callback may say where instead.
        run_dir = os.environ.get(RUN_DIR)
        self.recorder = Recorder(Path(run_dir) if run_dir else None, ranks.rank())
        self._parts: list[Any] = []
        self._observing: Any = None
        self._observation: Any = None

    def install(self, decoder: Any, mtp: Any, config: Any) -> Receipt:
        """Wraps one model part; ``apply_ac`` is replaced by this under parallel training.

        Args:
            decoder: MindFormers' ``TransformerBlock``, which holds all layers of this part.
            mtp: its MTP block, or None.
            config: the Trainer's ``TrainConfig``.

        Raises:
            ConfigError: for a plan this model can't take.
            InstallError: for a part that has a plan already, or a model that isn't mapped.
        """
        self.plan = self._plan_for(decoder, config)
        backends.refuse_plan(self.backend, self.plan)
        wrappers = backends.wrappers(self.backend)
        receipt = install(decoder, self.plan, blocks_of(decoder, mtp), wrappers, self.host)
        receipt.not_applied |= backends.limits(self.backend)
        logger.info(f"hp_memory: {receipt.in_words()}")
        return receipt

    def refuse_conflicts(self, config: Any) -> None:
        """Raises ConfigError for settings of MindFormers that clash with a plan, or with each other."""
        conflicts.refuse(config, with_plan=True)

    def on_train_begin(self, args: Any, state: Any, model: Any = None, **_: Any) -> None:
        """Installs at world size 1; otherwise only checks that the plan is in place on every rank."""
        for part in model:
            gpt = gpt_model(part)
            receipt = receipt_of(gpt.decoder)
            if receipt is None and agreement.world_size() > 1:
                raise InstallError(
                    "no plan is installed and FSDP has wrapped the model already: "
                    "import hp_memory.mindformers.callback before the Trainer is made"
                )
            self.plan = self._plan_for(gpt.decoder, args)
            if self.offload is not None:
                replays = any(layer.layout.replays(self.plan.regions(layer.layer)) for layer in self.plan.layers)
                path = "callbacks.HPMemoryCallback.offload"
                hyper_offload.refuse_pynative(part, replays, settings_from(self.offload, path), path)
            if receipt is None:
                self.refuse_conflicts(args)
                receipt = self.install(gpt.decoder, getattr(gpt, "mtp", None), args)
            if receipt.plan_hash != self.plan.hash():
                raise InstallError(
                    f"the model holds plan {receipt.plan_hash}, the callback asks for {self.plan.hash()}"
                )
            self.receipts.append(receipt)
            self._parts.append(gpt.decoder)
        plan = self._installed_plan()
        agreement.same_plan(plan.hash())
        logger.info(f"hp_memory: {plan.in_words()}")

    def on_step_begin(self, args: Any, state: Any, **_: Any) -> None:
        """Watches the first step of this run."""
        self.recorder.begin()
        if self._observation is None:
            self._observing = observe()
            self._observation = self._observing.__enter__()

    def on_step_end(self, args: Any, state: Any, loss: Any = None, **_: Any) -> None:
        """Writes the step down, and compares what ran on the first one with the plan.

        Raises:
            PlanMismatch: naming each region that ran or replayed another number of times.
        """
        self.recorder.end(state.global_step, loss)
        if self._observing is not None:
            self._observing.__exit__(None, None, None)
            self._observing = None
            for window in self._windows():
                window.refuse_idle()
            self.counts = verify.check(
                self.receipts, self._observation, state.num_accumulation_steps, self.backend == "native"
            )

    def on_train_end(self, args: Any, state: Any, **_: Any) -> None:
        """Says what was held, and writes the report of this run."""
        held = verify.memory(self._observation).get("total_bytes", 0)
        logger.info(f"hp_memory: autograd held {held:,} bytes when the first backward began (MEASURED)")
        self.recorder.close()
        if self.report:
            file = Path(self.report)
            if agreement.world_size() > 1:
                file = file.with_stem(f"{file.stem}_rank_{ranks.rank()}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(self.to_dict(), indent=2))

    def to_dict(self) -> dict[str, Any]:
        """What was done, what ran and what it held, JSON-ready."""
        return {
            "plan": self._installed_plan().to_dict(),
            "plan_hash": self._installed_plan().hash(),
            "receipts": [receipt.to_dict() for receipt in self.receipts],
            "runs": self.counts,
            "memory": verify.memory(self._observation),
            "host": [window.moves.to_dict() for window in self._windows()],
        }

    def _windows(self) -> list[Window]:
        """Where the model parts' offloaded regions wait; empty under a plan without any."""
        return [window for part in self._parts if (window := window_of(part)) is not None]

    def _installed_plan(self) -> ActivationPlan:
        if self.plan is None:
            raise InstallError("training has not begun: no plan is installed")
        return self.plan

    def _plan_for(self, decoder: Any, config: Any) -> ActivationPlan:
        model = settings_of(decoder.config, conflicts.value(config, "model.model_type"))
        parallel = ParallelSettings(expert=int(conflicts.value(config, "parallelism.expert_parallel", 1)))
        return plan_request.resolve(self.request, fingerprint(model, parallel), "callbacks.HPMemoryCallback.plan")


trainer_hook.hook(HPMemoryCallback)
