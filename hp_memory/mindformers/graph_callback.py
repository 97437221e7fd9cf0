"""The callback of MindFormers' graph-mode Trainer (and of any ``mindspore.train.Model``).

In a MindFormers config::

    callbacks:
      - type: HPMemoryGraphCallback
        plan: {name: mine, default: recompute, save: [attention.core]}
        layers: model.decoder.layers
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspore import nn
from mindspore.train import Callback

from hp_memory.errors import InstallError
from hp_memory.install import Receipt
from hp_memory.mindformers import graph_recompute, hyper_offload, names, plan_request
from hp_memory.offload.apply import settings_from


class HPMemoryGraphCallback(Callback):
    """Sets static recompute before the first compilation, and checks the settings of HyperOffload.

    Args:
        plan: a layout's settings or a saved plan, inline or as the path of a file, or the name of a recipe or layout;
            null sets no recompute.
        layers: where the list of blocks is below the training network.
        cells: region, or group of regions -> path of its cell below a block; null for MindFormers' own graph models.
        offload: HyperOffload's settings as a mapping: checked, and given to the network as jit options; null for none.
        report: file for the receipt as JSON; null writes none.
    """

    def __init__(
        self,
        plan: str | Mapping[str, Any] | None = None,
        layers: str = "network.model.decoder.layers",
        cells: Mapping[str, str] | None = None,
        offload: Mapping[str, Any] | None = None,
        report: str | None = None,
    ) -> None:
        super().__init__()
        self.request, self.layers, self.report = plan, layers, report
        self.cells = names.CELLS if cells is None else dict(cells)
        self.offload = offload
        self.receipt: Receipt | None = None

    def on_train_begin(self, run_context: Any) -> None:
        """Applies the plan to the network that is about to be compiled.

        Raises:
            ConfigError: for a plan this network can't take.
            InstallError: for a network that is compiled already.
        """
        network = run_context.original_args().train_network
        self.apply(network)

    def apply(self, network: nn.Cell) -> None:
        """The same for a network at hand, for trainers that compile before a callback is called."""
        if self.offload is not None:
            path = "callbacks.HPMemoryGraphCallback.offload"
            hyper_offload.configure(network, settings_from(self.offload, path), path)
        if self.request is None:
            return
        if self.receipt is not None:
            raise InstallError(f"plan {self.receipt.plan_hash} is applied already")
        blocks = graph_recompute.blocks_of(network, self.layers, self.cells)
        mark = graph_recompute.fingerprint(blocks, type(network).__name__)
        plan = plan_request.resolve(self.request, mark, "callbacks.HPMemoryGraphCallback.plan")
        self.receipt = graph_recompute.apply(network, plan, blocks)
        print(f"hp_memory: {self.receipt.in_words()}", flush=True)

    def on_train_end(self, run_context: Any) -> None:
        """Writes the receipt."""
        if self.report and self.receipt is not None:
            Path(self.report).write_text(json.dumps(self.receipt.to_dict(), indent=2))
