"""What a tensor carries while a checkpointed call runs: which value of the call it is. One entry of its user data.

User data belongs to the tensor below Python's object: aliases made by ``.data`` carry it on, views and copies don't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspore import Tensor

from hp_memory.activation.liveness import Output, Value

if TYPE_CHECKING:
    from hp_memory.activation.exclude import Region
    from hp_memory.activation.shading import Shade
    from hp_memory.activation.watching import Watch

_MARK = "hp_memory_value"


class Made:
    """On a live tensor: what made it in this forward. ``value`` is None for what came from outside the call."""

    __slots__ = ("token", "value", "watch")

    def __init__(self, token: object, value: Value | None, watch: Watch | None) -> None:
        self.token = token  # of the invocation, which the mark must not own
        self.value = value
        self.watch = watch


class Ghost:
    """On a stand-in that a replay hands out in place of an output that wasn't kept, and on all that is made of it.

    Attributes:
        region: whose output it is.
        until: operations may take it while no more saved calls than this have been replayed.
    """

    __slots__ = ("region", "shade", "until")

    def __init__(self, shade: Shade, region: Region, until: int) -> None:
        self.shade = shade
        self.region = region
        self.until = until


def of(tensor: Tensor) -> Made | Ghost | None:
    found = tensor._get_user_data(_MARK)
    return found if type(found) in _KINDS else None


def put(tensor: Tensor, mark: Made | Ghost | None) -> None:
    tensor._set_user_data(_MARK, mark)


def ghost_of(tensor: Tensor) -> Ghost | None:
    found = tensor._get_user_data(_MARK)
    return found if type(found) is Ghost else None


def produced(tensor: Tensor, token: object) -> Output | None:
    """(record, leaf) if a saved region of the invocation with this token made ``tensor``."""
    found = tensor._get_user_data(_MARK)
    if type(found) is Made and found.token is token and type(found.value) is tuple:
        return found.value
    return None


_KINDS = frozenset({Made, Ghost})
