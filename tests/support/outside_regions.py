"""Which operations of a block run outside its regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import MsDispatchMode, Parameter, Tensor

from hp_memory.activation import observe, observing
from hp_memory.models.sites import BlockSites

# Bookkeeping of hooks, no operation of the model.
_DETACH = "StopGradient"


class _Watch(MsDispatchMode):
    def __init__(self) -> None:
        self.block = ""
        self.found: dict[str, Counter[str]] = {}

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.block and func.name != _DETACH and observing._labels.stack[-1][0] == "outside regions":
            what = _what(func.name, args, out)
            if what != "view":
                self.found.setdefault(self.block, Counter())[what] += 1
        return out


def _what(name: str, args: tuple, out: Any) -> str:
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if name == "Cast" and any(isinstance(tensor, Parameter) for tensor in tensors):
        return "cast of a weight"
    places = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    results = out if isinstance(out, (tuple, list)) else (out,)
    if tensors and all(isinstance(r, Tensor) and r.untyped_storage().data_ptr() in places for r in results):
        return f"write by {name}" if name.startswith("Inplace") else "view"
    return name


def outside_regions(blocks: Sequence[BlockSites], run: Callable[[], Any]) -> dict[str, dict[str, int]]:
    """Calls ``run``, a forward of a model whose regions are wrapped; views, which do no work, are left out.

    Returns:
        for each block's path, how often which operation ran outside every region.
    """
    watch, handles = _Watch(), []
    for site in blocks:
        cell = site.container._cells[str(site.key)]

        def enter(_cell: Any, _inputs: Any, path: str = site.path) -> None:
            watch.block = path
            watch.found[path] = Counter()

        def leave(_cell: Any, _inputs: Any, _output: Any) -> None:
            watch.block = ""

        handles += [cell.register_forward_pre_hook(enter), cell.register_forward_hook(leave)]
    with observe(), watch:
        run()
    for handle in handles:
        handle.remove()
    return {path: dict(found) for path, found in watch.found.items()}
