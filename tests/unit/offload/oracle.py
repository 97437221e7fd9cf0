"""MindSpore's own HyperOffload optimizer as an oracle: ``oracle.cpp``, built with the package's headers and libraries.

Run as a program it serves: one JSON case a line on standard input, one result a line on standard output.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".cpp")
# As MindSpore's package was built: the old string ABI and its fast hash table.
DEFINES = ("-D_GLIBCXX_USE_CXX11_ABI=0", "-DENABLE_FAST_HASH_TABLE=1")
INCLUDES = (
    "", "mindspore", "mindspore/core", "mindspore/core/include", "mindspore/ccsrc", "mindspore/ccsrc/include",
    "mindspore/ccsrc/include/utils", "mindspore/ops/include", "third_party", "third_party/include",
    "third_party/robin_hood_hashing",
)  # fmt: skip


def package() -> Path:
    """Where MindSpore is installed; it isn't imported."""
    return Path(find_spec("mindspore").submodule_search_locations[0])


def missing() -> str | None:
    """What this machine lacks to build the oracle."""
    if shutil.which("g++") is None:
        return "g++ is needed to call MindSpore's compiled optimizer"
    if not (package() / "include/mindspore/ccsrc/utils/hyper_offload/hyper_offload.h").exists():
        return "this MindSpore package comes without the headers of its optimizer"
    return None


def build(folder: Path) -> Path:
    """The compiled library, built once for this source and package."""
    root = package()
    mark = hashlib.sha256(SOURCE.read_bytes() + str(root).encode()).hexdigest()[:16]
    library = folder / f"oracle_{mark}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        includes = [f"-I{root / 'include' / name}" for name in INCLUDES]
        libraries = [f"-L{root / 'lib'}", "-lmindspore_common", "-lmindspore_core", f"-Wl,-rpath,{root / 'lib'}"]
        command = ["g++", "-shared", "-fPIC", "-std=c++17", "-O0", "-w", *DEFINES, *includes, str(SOURCE)]
        subprocess.run([*command, "-o", str(made), *libraries, "-Wl,--allow-shlib-undefined"], check=True)
        made.rename(library)
    return library


class Oracle:
    """A process that plans cases with MindSpore's optimizer."""

    def __init__(self, library: Path) -> None:
        command = [sys.executable, __file__, str(library)]
        pipe, env = subprocess.PIPE, os.environ | {"GLOG_v": "4"}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env)

    def plan(self, case: dict[str, Any]) -> dict[str, Any]:
        """The result for a case, in the form of the golden files."""
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        result = json.loads(self.process.stdout.readline())
        assert result["error"] in (None, "h2d_without_user"), result["error"]
        return result

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=30)


def serve(library: str) -> None:
    # Not CDLL, which gives the interpreter's lock away: the optimizer looks at a Python string.
    optimizer = ctypes.PyDLL(library)
    optimizer.hyper_offload.restype = ctypes.c_char_p
    optimizer.set_remote(ctypes.py_object("Remote"))
    defaults = runpy.run_path(str(package() / "graph/_parse/compile_config.py"))
    defaults["HYPER_OFFLOAD_PEAK_MODELED_HEADROOM_BYTES"] = 0  # a case's headroom is taken off its memory
    for name, value in defaults.items():
        if name.isupper() and isinstance(value, str | int | float):
            optimizer.set_default(name.encode(), str(value).encode())
    for line in sys.stdin:
        print(optimizer.hyper_offload(line.encode()).decode(), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
