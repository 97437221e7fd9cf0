"""A transport whose copies run when the test says so, in any order of its choosing."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor


class Out:
    def __init__(self, transport, source, buffer):
        self.transport, self.log = transport, transport.log
        self.source, self.buffer = source, buffer
        self.shape, self.dtype = tuple(source.shape), None
        self.complete = self.cancelled = False

    def finish(self):
        if self.complete or self.cancelled:
            return
        array = self.source.asnumpy()
        self.dtype = array.dtype
        self.buffer.memory[:] = array.reshape(-1).view(np.uint8)
        self.source, self.complete = None, True
        self.log.append("out")

    def done(self):
        return self.complete or self.cancelled

    def wait(self):
        self.finish()

    def back(self):
        return self.transport.copy_in(self)

    def cancel(self):
        self.cancelled = not self.complete
        if self.cancelled:
            self.source = None
        return self.cancelled


class In:
    def __init__(self, log, out):
        self.log, self.out, self.array = log, out, None

    def finish(self):
        if self.array is None:
            assert self.out.complete, "read before the copy out was complete"
            self.array = self.out.buffer.memory.view(self.out.dtype).reshape(self.out.shape).copy()
            self.log.append("in")

    def take(self):
        self.finish()
        return Tensor.from_numpy(self.array)


class ByHand:
    """Keeps every copy it was asked for, in ``outs`` and ``ins``; ``log`` has what ran."""

    def __init__(self):
        self.outs, self.ins, self.log = [], [], []

    def allocate(self, nbytes):
        return np.full(nbytes, 255, np.uint8)  # NaNs, so that what is read too early shows

    def copy_out(self, source, buffer):
        self.outs.append(Out(self, source, buffer))
        return self.outs[-1]

    def copy_in(self, out):
        self.ins.append(In(self.log, out))
        return self.ins[-1]

    def finish_out(self):
        for out in self.outs:
            out.finish()

    def finish_in(self, which):
        found = self.ins[which % len(self.ins)] if self.ins else None
        if found is not None and found.out.complete:
            found.finish()
