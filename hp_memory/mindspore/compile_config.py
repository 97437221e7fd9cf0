"""What MindSpore reads of its compile configuration: the map inside its library, not the Python module it came from.

MindSpore copies the module's attributes into that map once, when the first ``nn.Cell`` is made. No Python function
shows the map, so it is walked in memory: a ``std::map<std::string, std::string>`` and a flag, as the package's
``utils/compile_config.h`` declares them. Without this a change after the first Cell would look as if it were in force.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os

LIBRARY = "lib/libmindspore_core.so"
SINGLETON = "_ZN9mindspore20CompileConfigManager11GetInstanceEv"
# This name exists only where strings are what libstdc++ had before 2015: one pointer, the length in front of the text.
OLD_STRINGS = "_ZN9mindspore20CompileConfigManager9GetConfigERKSs"
# Of std::map: the header node; its parent is the root. Of a node: left, right, and the pair of strings.
HEADER, PARENT, COUNT, LEFT, RIGHT, PAIR, MAP_SIZE = 8, 8, 40, 16, 24, 32, 48
MOST_ENTRIES = 10_000  # far above the 57 of 2.10.0: another layout would give any number


def in_force() -> dict[str, str] | None:
    """The configuration in force, or None while MindSpore hasn't read it.

    Raises:
        OSError: this MindSpore's library isn't there, or isn't laid out as 2.10.0's.
    """
    spec = importlib.util.find_spec("mindspore")
    if spec is None or not spec.submodule_search_locations:
        raise OSError("MindSpore isn't installed")
    library = ctypes.CDLL(os.path.join(spec.submodule_search_locations[0], LIBRARY))
    if not hasattr(library, SINGLETON):
        raise OSError("this MindSpore's library doesn't have the compile configuration of 2.10.0")
    instance = getattr(library, SINGLETON)
    instance.restype = ctypes.c_void_p
    base = instance()
    if not ctypes.c_bool.from_address(base + MAP_SIZE).value:
        return None
    if _word(base + COUNT) > MOST_ENTRIES:
        raise OSError("this MindSpore's compile configuration isn't laid out as that of 2.10.0")
    found: dict[str, str] = {}
    _walk(_word(base + HEADER + PARENT), hasattr(library, OLD_STRINGS), found)
    return found


def _walk(node: int, old_strings: bool, found: dict[str, str]) -> None:
    if node == 0:
        return
    _walk(_word(node + LEFT), old_strings, found)
    first, size = node + PAIR, 8 if old_strings else 32
    found[_text(first, old_strings)] = _text(first + size, old_strings)
    _walk(_word(node + RIGHT), old_strings, found)


def _text(address: int, old_strings: bool) -> str:
    start = _word(address)
    length = _word(start - 24 if old_strings else address + 8)
    return ctypes.string_at(start, length).decode()


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value
