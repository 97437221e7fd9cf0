"""Which layers each chunk of the pipeline owns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from hp_memory.errors import ConfigError

_PART = re.compile(r"(\d+)(?:(-)(\d*))?")


def parse_ids(text: Any, count: int, path: str, what: str) -> tuple[int, ...]:
    """Ids that ``"0-4,9-12"``, ``"3"`` or ``"2-"`` means, strictly ascending, below ``count``."""
    ids: list[int] = []
    for part in str(text).split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(path, text, f"not a list of {what}", ("3", "0-4", "2-", "0-4,9-12"))
        low, dash, high = match.groups()
        last = int(high) if high else count - 1 if dash else int(low)
        ids += range(int(low), last + 1) if int(low) <= last else [int(low), last]
    if ids and max(ids) >= count:
        raise ConfigError(path, text, f"there are {what} 0-{count - 1}")
    if any(a >= b for a, b in itertools.pairwise(ids)):
        raise ConfigError(path, text, f"{what} must ascend without repeats")
    return tuple(ids)


def runs(ids: Sequence[int]) -> list[tuple[int, int]]:
    """First and last id of each run of consecutive ids."""
    out: list[tuple[int, int]] = []
    for i in ids:
        if out and i == out[-1][1] + 1:
            out[-1] = (out[-1][0], i)
        else:
            out.append((i, i))
    return out


def layers_of_chunks(spec: Any, layers: int, placement: Sequence[int], path: str) -> tuple[tuple[int, ...], ...]:
    """Layer ids of each chunk, from input to output.

    Args:
        spec: ``auto``, layers per chunk, or layer ids per rank (see ``PipelineSettings.layers_per_stage``).
        layers: layers of the model.
        placement: the rank of each chunk.

    Raises:
        ConfigError: a spec that doesn't give every layer to exactly one chunk, or leaves a chunk empty.
    """
    if spec == "auto":
        return _from_counts(_even(layers, len(placement), path), layers, path)
    kinds = {type(s) for s in spec} if isinstance(spec, (list, tuple)) else set()
    if kinds == {str}:
        return _from_ranks(spec, layers, placement, path)
    if kinds != {int}:
        raise ConfigError(path, spec, "not a split", ("auto", "[3, 5]", '["0-2", "3-7"]'))
    if len(spec) != len(placement):
        raise ConfigError(
            path, spec, f"the schedule has {len(placement)} chunks, from input to output: one number each"
        )
    return _from_counts(spec, layers, path)


def _even(layers: int, chunks: int, path: str) -> list[int]:
    each, rest = divmod(layers, chunks)
    if not each:
        raise ConfigError(path, "auto", f"the model has {layers} layers, too few for {chunks} chunks")
    if rest:
        uneven = [each + (i < rest) for i in range(chunks)]
        why = f"{layers} layers don't divide into {chunks} chunks; say which are longer, e.g. {uneven}"
        raise ConfigError(path, "auto", why)
    return [each] * chunks


def _from_counts(counts: Sequence[int], layers: int, path: str) -> tuple[tuple[int, ...], ...]:
    if min(counts) < 1:
        raise ConfigError(path, list(counts), "every chunk needs a layer")
    if sum(counts) != layers:
        raise ConfigError(path, list(counts), f"adds up to {sum(counts)} layers, the model has {layers}")
    starts = itertools.accumulate(counts[:-1], initial=0)
    return tuple(tuple(range(s, s + n)) for s, n in zip(starts, counts, strict=True))


def _from_ranks(spec: Sequence[str], layers: int, placement: Sequence[int], path: str) -> tuple[tuple[int, ...], ...]:
    ranks = max(placement) + 1
    if len(spec) != ranks:
        raise ConfigError(path, list(spec), f"the pipeline has {ranks} ranks: one entry each")
    owner: dict[int, int] = {}
    for rank, text in enumerate(spec):
        for layer in parse_ids(text, layers, f"{path}[{rank}]", "layers"):
            if layer in owner:
                raise ConfigError(f"{path}[{rank}]", text, f"layer {layer} is on rank {owner[layer]} already")
            owner[layer] = rank
    missing = [i for i in range(layers) if i not in owner]
    if missing:
        raise ConfigError(path, list(spec), f"no rank has layer {', '.join(map(str, missing))}")
    return _cut(owner, placement, spec, path)


def _cut(
    owner: dict[int, int], placement: Sequence[int], spec: Sequence[str], path: str
) -> tuple[tuple[int, ...], ...]:
    """Chunks from the owners of all layers; where two chunks of one rank touch (the foot of a V), cut in the middle."""
    order = [owner[i] for i in sorted(owner)]
    chunks: list[tuple[int, ...]] = []
    at = 0
    for i, rank in enumerate(placement):
        end = at
        while end < len(order) and order[end] == rank:
            end += 1
        if i + 1 < len(placement) and placement[i + 1] == rank:
            end = at + (end - at + 1) // 2
        if end == at:
            raise ConfigError(
                path, list(spec), f"the schedule visits ranks {list(placement)} in turn; layer {at} isn't on {rank}"
            )
        chunks.append(tuple(range(at, end)))
        at = end
    if at != len(order):
        raise ConfigError(path, list(spec), f"layer {at} comes after the last chunk of the schedule")
    return tuple(chunks)
