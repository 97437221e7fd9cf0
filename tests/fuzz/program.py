"""What a random program is: plain data, drawn from a number, printable as JSON and small enough to read."""

from __future__ import annotations

import random
from typing import Any, TypedDict

WIDTH = 4

# What an operation saves for backward: nothing, inputs, views, copies of views, internals, parameters, casts of them.
OPERATIONS = (
    *("scale", "shift", "square", "silu", "tanh", "matmul", "matmul_t", "half", "linear", "expert", "reshape", "none"),
    *("halves", "flip", "view", "expand", "gather", "sorted", "where", "detached", "tied", "frozen", "column", "host"),
    *("local_write", "assign_local", "jitted"),
)
# How a region is given its tensors, and how it returns them.
ARGUMENTS = ("positional", "keyword", "nested", "mapped", "with_none", "with_array")
OUTPUTS = (
    *("one", "list", "tuple", "dict", "named", "dataclass", "object", "with_input", "twice", "with_none", "tiny"),
    *("with_numbers", "attribute"),
)
# What a body does to what it was given, and the block to what it got.
WRITES = ("copy", "view_copy", "setitem", "buffer", "returned", "used", "alias", "assign", "saved")
AFTER = ("change_numbers", "write_output", "write_input")
BACKWARDS = ("whole", "dx_dw", "session", "prefired", "retained", "split", "split_session", "thread", "double")
DTYPES = ("float32", "float32", "float32", "float16")


class Step(TypedDict):
    """One call: of a region, or of the same body bare."""

    region: str | None
    operations: list[str]
    reads: list[int]
    arguments: str
    output: str
    write: str | None
    after: str | None
    worker: bool
    """It is called on a thread of its own."""


class Program(TypedDict):
    """A block and how it is trained."""

    steps: list[Step]
    saved: list[str]
    rows: int
    dtype: str
    micro_batches: int
    order: list[int]
    backward: str
    early_stop: bool
    raises: int | None


def _step(draw: random.Random, rarely: float) -> Step:
    region = draw.choice(["r0", "r1", "r2", "r3", None])
    return {
        "region": region,
        "operations": [draw.choice(OPERATIONS) for _ in range(draw.randint(1, 3))],
        "reads": [draw.randint(0, 5) for _ in range(draw.randint(1, 2))],
        "arguments": draw.choice(ARGUMENTS),
        "output": draw.choice(OUTPUTS),
        "write": draw.choice(WRITES) if draw.random() < rarely else None,
        "after": draw.choice(AFTER) if draw.random() < rarely else None,
        "worker": draw.random() < 0.03,
    }


def program(seed: int) -> Program:
    """The program of that number."""
    draw = random.Random(seed)
    # Most programs write nothing: those must train, whatever else they do.
    rarely = draw.choice([0.0, 0.0, 0.3])
    steps = [_step(draw, rarely) for _ in range(draw.randint(1, 5))]
    names = sorted({step["region"] for step in steps if step["region"]})
    count = draw.choice([1, 1, 1, 2, 3])
    rows, backward = draw.choice([3, 3, 3, 1, 0]), draw.choice(BACKWARDS)
    return {
        "steps": steps,
        "saved": [name for name in names if draw.random() < 0.7],
        # MindSpore's kernels divide by zero in the second gradient of nothing.
        "rows": rows or 3 * (backward == "double"),
        "dtype": draw.choice(DTYPES),
        "micro_batches": count,
        "order": draw.sample(range(count), count),
        "backward": backward,
        "early_stop": draw.random() < 0.3,
        "raises": draw.randint(0, 3) if draw.random() < 0.1 else None,
    }


def writes(made: Program) -> bool:
    """True where something is written in place across a region's border, so that a refusal is an answer."""
    return any(step["write"] or step["after"] in ("write_output", "write_input") for step in made["steps"])


def smaller(made: Program) -> Any:
    """Programs with one thing less than ``made``, the largest cuts first."""
    for index in range(len(made["steps"])):
        if len(made["steps"]) > 1:
            yield {**made, "steps": made["steps"][:index] + made["steps"][index + 1 :]}
    for name in made["saved"]:
        yield {**made, "saved": [other for other in made["saved"] if other != name]}
    if made["micro_batches"] > 1:
        yield {**made, "micro_batches": 1, "order": [0]}
    for key, plain in (
        ("backward", "whole"),
        ("early_stop", False),
        ("raises", None),
        ("rows", 3),
        ("dtype", "float32"),
    ):
        if made[key] != plain:
            yield {**made, key: plain}
    for index, step in enumerate(made["steps"]):
        for simpler in _simpler(step):
            yield {**made, "steps": [*made["steps"][:index], simpler, *made["steps"][index + 1 :]]}


def _simpler(step: Step) -> Any:
    for key, plain in (
        ("region", None),
        ("write", None),
        ("after", None),
        ("arguments", "positional"),
        ("worker", False),
    ):
        if step[key] != plain:
            yield {**step, key: plain}
    if step["output"] != "one":
        yield {**step, "output": "one"}
    if len(step["reads"]) > 1:
        yield {**step, "reads": step["reads"][:1]}
    for index in range(len(step["operations"])):
        if len(step["operations"]) > 1:
            yield {**step, "operations": step["operations"][:index] + step["operations"][index + 1 :]}
