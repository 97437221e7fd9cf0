"""Values on the meta device: what the host put into a tensor can be read back, and a routing is injected.

Code that reads tensors on the host (top-k indices, rows per expert) can't run on the meta device. While ``remembered``
is active, a tensor made from a numpy array keeps that array beside it, and reading a tensor nobody put values into
asks ``inject``. The code under trace then runs unchanged, with the routing that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mindspore import Tensor

_KEY = "hp_memory_values"

Inject = Callable[[Tensor], "np.ndarray | None"]

on_make: list[Callable[[Tensor], object]] = []
"""Told of every tensor made from an array while ``remembered`` is active: aliases taken later copy what is on it."""
on_read: list[Callable[[Tensor], object]] = []
"""Told of every tensor that the host reads while ``remembered`` is active."""


def put(tensor: Tensor, values: np.ndarray) -> Tensor:
    """Lets ``values`` be read from ``tensor``."""
    tensor._set_user_data(_KEY, values)
    return tensor


def known(tensor: Tensor) -> bool:
    """Whether the host put values into ``tensor``."""
    return isinstance(tensor._get_user_data(_KEY), np.ndarray)


def follow(source: Tensor, alias: Tensor) -> None:
    """Lets an alias or a reshape of ``source`` be read too."""
    if known(source) and source.size == alias.size and source.dtype == alias.dtype:
        put(alias, source._get_user_data(_KEY).reshape(tuple(alias.shape)))


@contextmanager
def remembered(inject: Inject) -> Iterator[None]:
    """While inside, host reads of meta tensors give what was put in, or what ``inject`` says.

    Raises (at a read):
        RuntimeError: for a tensor whose values nobody knows.
    """
    make, read, listed = Tensor.__init__, Tensor.asnumpy, Tensor.tolist

    def making(self: Tensor, input_data: Any = None, *args: Any, **kwargs: Any) -> None:
        make(self, input_data, *args, **kwargs)
        if isinstance(input_data, np.ndarray):
            put(self, input_data)
            for told in on_make:
                told(self)

    def reading(self: Tensor) -> np.ndarray:
        if self.device != "meta":
            return read(self)
        for told in on_read:
            told(self)
        known = self._get_user_data(_KEY)
        values = known if isinstance(known, np.ndarray) else inject(self)
        if values is None:
            raise RuntimeError(f"a {tuple(self.shape)} {self.dtype} tensor is read on the host, and has no values here")
        return values

    Tensor.__init__, Tensor.asnumpy, Tensor.tolist = making, reading, lambda self: reading(self).tolist()
    try:
        yield
    finally:
        Tensor.__init__, Tensor.asnumpy, Tensor.tolist = make, read, listed
