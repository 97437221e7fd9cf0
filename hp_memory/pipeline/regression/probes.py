"""What really happened in a run, seen from inside the regions, underneath the wrappers.

Independent of the wrappers' own counters: a probe sits in the region's body. It counts runs, checks that a replay sees
what its forward saw (tensors, split sizes, random numbers), and plants a witness that compares, in backward, the input
the region saved with the one it had in the forward of the same micro-batch.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Parameter, Tensor, int64, nn

from hp_memory.mindspore.private import Function as _Function
from hp_memory.mindspore.private import default_generator
from hp_memory.models.sites import BlockSites, Site

DRAWS_PER_BLOCK = 4


def digest(tensor: Tensor) -> int:
    return zlib.crc32(tensor.asnumpy().tobytes())


def _fingerprint(args: Any) -> Any:
    if isinstance(args, Tensor):
        return digest(args)
    return tuple(_fingerprint(a) for a in args) if isinstance(args, (tuple, list)) else args


class _Witness(_Function):
    """Passes ``out`` on and saves ``x`` as the region would: backward must get the very same values back."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, expected: int, report: Callable[[bool], None]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.expected, ctx.report = expected, report
        return out * 1  # keeps every bit, also of -0.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        ctx.report(digest(ctx.saved_tensors[0]) == ctx.expected)
        return grad, None, None, None


class Probes:
    """What one rank's chunks did, by ``<layer>/<region>`` and by layer.

    Attributes:
        bodies, blocks: how often each region's body and each block ran.
        witnessed: how often backward read a region's input.
        misbound: inputs that backward got from another invocation.
        unlike: replays that saw something else than their forward.
        draws: where in the random sequence each forward drew.
    """

    def __init__(self) -> None:
        self.bodies: Counter[str] = Counter()
        self.blocks: Counter[int] = Counter()
        self.witnessed: Counter[str] = Counter()
        self.misbound: list[str] = []
        self.unlike: list[str] = []
        self.draws: list[int] = []
        self._seen: dict[tuple, Any] = {}
        self._call: tuple = ()

    def put(self, blocks: Sequence[BlockSites]) -> None:
        """Put a probe into every site and every block."""
        for block in blocks:
            for site in block.sites:
                self._put_site(block.layer, site)
            cell = block.container[block.key]
            _set_construct(cell, self._block(block.layer, cell.construct))

    def _put_site(self, layer: int, site: Site) -> None:
        name = f"{layer}/{site.path.split('.', 2)[2]}"
        target = getattr(site.owner, site.attr)
        if isinstance(target, nn.Cell):
            _set_construct(target, self._region(name, target.construct))
        else:
            object.__setattr__(site.owner, site.attr, self._region(name, target))

    def _block(self, layer: int, body: Callable) -> Callable:
        def run(x: Tensor) -> Tensor:
            self.blocks[layer] += 1
            self._call = (layer, digest(x))
            _, offset = default_generator._step(Tensor(DRAWS_PER_BLOCK, int64))
            if self._same("random numbers", int(offset)):
                self.draws.append(int(offset))
            return body(x)

        return run

    def _region(self, name: str, body: Callable) -> Callable:
        def run(*args: Any) -> Any:
            self.bodies[name] += 1
            self._same(name, _fingerprint(args))
            return self._with_witness(name, args, body(*args))

        return run

    def _same(self, what: str, found: Any) -> bool:
        """Note what a forward saw, or compare what its replay sees; True the first time."""
        key = (*self._call, what)
        if key not in self._seen:
            self._seen[key] = found
            return True
        if self._seen[key] != found:
            self.unlike.append(f"layer {self._call[0]}: a replay of {what} saw something else than its forward")
        return False

    def _with_witness(self, name: str, args: Sequence[Any], out: Any) -> Any:
        leaves = list(out) if isinstance(out, tuple) else [out]
        if not (isinstance(leaves[0], Tensor) and leaves[0]._requires_grad):
            return out
        for x in args:
            if isinstance(x, Tensor) and not isinstance(x, Parameter) and x._requires_grad:
                leaves[0] = _Witness.apply(leaves[0], x, digest(x), self._reporter(name))
        return type(out)(leaves) if isinstance(out, tuple) else leaves[0]

    def _reporter(self, name: str) -> Callable[[bool], None]:
        def report(equal: bool) -> None:
            self.witnessed[name] += 1
            if not equal:
                self.misbound.append(f"{name}: backward got an input of another invocation")

        return report


def _set_construct(cell: nn.Cell, construct: Callable) -> None:
    object.__setattr__(cell, "construct", construct)
