"""The early end of a replay: once everything that backward can still read is there, the next operation ends it.

An exception out of a saved-tensor hook would leave through the middle of an operation, which MindSpore's legacy CPU
kernels don't survive. So a replay ends *between* operations, where a dispatch mode is asked about the next one, and
only where no call is open that has something left to do: hooks of a Cell behind its ``construct``, a mixed precision to
be reset, a gradient or a custom function under way. Inside such a call the replay goes on until it is over.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from mindspore import MsDispatchMode, nn

from hp_memory.mindspore.private import Function, grad_code

# Not an Exception: no handler of the block's is meant for it, and no hook that is called after errors.


class Ended(BaseException):
    """Leaves a replay that has given all that is needed."""


_OPEN = frozenset({nn.Cell._run_construct.__code__, Function.apply.__func__.__code__})
_MAYBE_OPEN = nn.Cell._complex_call.__code__


class Ending(MsDispatchMode):
    """Raises ``Ended`` at the first good place after the replay has saved and called enough.

    Attributes:
        raised: it did. MindSpore's indexing turns what comes out of a dispatch into an error of its own.
    """

    def __init__(self, needed: tuple[int, int] | None, outermost: CodeType) -> None:
        """Args: how many tensors have to be saved and how many regions called, None to run to the end; the code of the
        function that the replay was started by."""
        self.raised = False
        self._needed = needed
        self._outermost = outermost
        self._begun = False

    def progress(self, saved: int, called: int) -> None:
        """So many tensors have been saved and regions called on the replay's own thread."""
        if self._needed is not None and not self._begun and saved >= self._needed[0] and called >= self._needed[1]:
            self._begun = True
            super().__enter__()

    def close(self) -> None:
        """The replay is over."""
        if self._begun:
            super().__exit__(None, None, None)

    def here(self) -> None:
        """Ends the replay if it may end here."""
        if self._begun and not _has_open_calls(sys._getframe(1), self._outermost):
            self.raised = True
            raise Ended

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        self.here()
        return func(*args, **(kwargs or {}))


def _has_open_calls(frame: FrameType | None, outermost: CodeType) -> bool:
    while frame is not None and frame.f_code is not outermost:
        code = frame.f_code
        if code in _OPEN or code.co_filename == grad_code:
            return True
        if code is _MAYBE_OPEN:
            cell = frame.f_locals["self"]
            if cell.mixed_precision_type is not None or cell.is_top_cell or cell._dynamic_shape_inputs is not None:
                return True
        frame = frame.f_back
    return False
