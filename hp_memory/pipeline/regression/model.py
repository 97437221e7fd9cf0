"""The reference MoE model cut into chunks, with its embedding tied to its head across the first and the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from mindspore import Tensor, mint, nn, ops

from hp_memory.host.settings import HostSettings
from hp_memory.install import Receipt, install
from hp_memory.kernels.groups import ALONE, Group
from hp_memory.layout import ActivationPlan, LayoutSettings, build_plan
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.reference import build, next_token_loss, region_map
from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.pipeline.regression.cases import Case
from hp_memory.pipeline.regression.probes import Probes

EMBEDDING, HEAD = "embedding", "head"


class Part(nn.Cell):
    """A chunk of the model; the last one takes labels too and returns the mean loss of the micro-batch."""

    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        out = self.model(x)
        return next_token_loss(out, labels) if self.model.has_head else out


class Bench:
    """The model, data and groups that all cases of a run share.

    Args:
        settings: the reference model; ``num_layers`` is the least, cases with more chunks get more layers.
        layouts: layout settings by name.
        group: the ranks that share the experts of a stage.
        rows: sequences per micro-batch.
    """

    def __init__(
        self,
        settings: ModelSettings,
        layouts: Mapping[str, LayoutSettings],
        group: Group = ALONE,
        rows: int = 1,
        seed: int = 7,
    ) -> None:
        self.settings, self.layouts, self.group, self.rows, self.seed = settings, layouts, group, rows, seed
        self.parallel = ParallelSettings(data=group.size, expert=group.size)

    def model_settings(self, case: Case) -> ModelSettings:
        """One micro-batch's share of the balance loss: its gradient is added per micro-batch, not averaged."""
        layers = max(self.settings.num_layers, case.settings.chunks)
        return replace(self.settings, num_layers=layers, aux_loss_coeff=case.aux_loss / case.microbatches)

    def plan(self, case: Case) -> ActivationPlan:
        layout = self.layouts[case.layout]
        if case.replays_something:
            layout = replace(layout, early_stop=case.early_stop)
        return build_plan(layout, fingerprint(self.model_settings(case)))

    def part(self, case: Case, layers: Sequence[int], first: bool, last: bool) -> Part:
        """Some layers of the model; the head holds the embedding's values, transposed."""
        settings = self.model_settings(case)
        make = partial(build, settings, self.parallel, group=self.group, seed=self.seed)
        model = make(layers=range(layers[0], layers[-1] + 1), embedding=first, head=last)
        if last:
            table = make(layers=range(0), embedding=True, head=False).embedding
            model.head.set_data(Tensor(np.ascontiguousarray(table.asnumpy().T)))
        return Part(model)

    def installed(self, case: Case, part: Part, probes: Probes | None, ahead: int = 2) -> Receipt:
        """Install the case's plan, with probes underneath the wrappers.

        Offloaded regions come back ``ahead`` regions before their backward.
        """
        sites = region_map(part.model)
        if probes is not None:
            probes.put(sites)
        return install(part.model, self.plan(case), sites, host=HostSettings("1GiB", min_bytes="1B", prefetch=ahead))

    def data(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and labels (micro-batches, rows, sequence length), other ones for each rank of the group."""
        draw = np.random.default_rng((self.seed, self.group.index))
        shape = (case.microbatches, self.rows, self.settings.seq_length + 1)
        text = draw.integers(0, self.settings.vocab_size, shape).astype(np.int32)
        return text[..., :-1].copy(), text[..., 1:].copy()


def tied_loss(part: Part, tokens: Tensor, labels: Tensor) -> Tensor:
    """The loss of the whole model with one embedding that really is its head too."""
    model = part.model
    x = ops.gather(model.embedding, tokens.reshape(-1), 0)
    for block in model.layers:
        x = block(x)
    return next_token_loss(mint.matmul(model.norm(x), mint.transpose(model.embedding, 0, 1)), labels)
