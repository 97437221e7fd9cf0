"""What a block of the reference model must hold under any layout, by hand: the flow of its tensors, and one rule.

No part of the project's own liveness is used here, neither the watch's nor the dry run's.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A region: what it reads, makes, and saves for its gradient. ``kept``: outputs that are kept in any case, as
    decisions are and whatever has no gradient."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    saves: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def _row(text: str) -> Row:
    reads, makes, saves, kept = (tuple(part.split()) for part in text.split("|"))
    return Row(reads, makes, saves, kept)


ADDITION = "addition"  # of a residual: bare, so run again in every replay that needs it
_ATTENTION = {
    "attention.norm": "x | normed | x deviation |",
    "attention.qkv_proj": "normed | projected | normed |",
    "attention.rope": "projected | q k v | |",
    "attention.core": "q k v | attended | q k v attended maximum sum |",
    "attention.out": "attended | mixed | attended |",
    ADDITION: "x mixed | residual | |",
    "mlp.norm": "residual | normed2 | residual deviation2 |",
}
_DENSE = {
    "mlp.up": "normed2 | hidden | normed2 |",
    "mlp.act": "hidden | activated | hidden |",
    "mlp.down": "activated | out | activated |",
}
_DECIDED = "weights experts counts"
_MOE = {
    "router.gate": "normed2 | scores | normed2 scores |",
    "router.choose": f"scores | {_DECIDED} | experts chosen chosen_sum load | {_DECIDED}",
    "dispatch.counts": "counts | back order groups | | back order groups",
    "dispatch.permute": "normed2 experts | rows places | places | places",
    "all2all.in": "rows | received | |",
    "compute.resort": "received order back | sorted | back |",
    "gmm.up": "sorted groups | hidden | sorted groups |",
    "compute.act": "hidden | activated | hidden |",
    "gmm.down": "activated groups | result | activated groups |",
    "combine.unsort": "result back order | unsorted | order |",
    "all2all.out": "unsorted | returned | |",
    "combine.unpermute": "returned places weights | routed | returned places weights |",
    "shared_experts.up": "normed2 | shared_hidden | normed2 |",
    "shared_experts.act": "shared_hidden | shared_activated | shared_hidden |",
    "shared_experts.down": "shared_activated | shared | shared_activated |",
}
ROWS = {
    kind: {region: _row(text) for region, text in (_ATTENTION | parts).items()}
    for kind, parts in (("dense", _DENSE), ("moe", _MOE))
}

_SHAPES = {
    "x normed mixed residual normed2 routed shared out": "T H",
    "deviation deviation2 chosen_sum": "T 1",
    "projected": "T QKV",
    "q": "B N S D",
    "k v": "B K S D",
    "attended": "T ND",
    "maximum sum": "B N S 8",
    "scores": "T E",
    "weights chosen": "T k",
    "load": "E",
    "rows returned": "Tk H",
    "received sorted result unsorted": "R H",
    "shared_hidden": "T 2F_shared",
    "shared_activated": "T F_shared",
}
_INTEGERS = {"experts": ("T k", 4), "counts": ("E", 4), "back order": ("R", 4), "groups": ("G", 8), "places": ("Tk", 4)}
_EXPERT = {"dense": {"hidden": "T 2F_dense", "activated": "T F_dense"}, "moe": {"hidden": "R 2F", "activated": "R F"}}


def nbytes(names: set[str], kind: str, values: dict[str, int]) -> int:
    """Bytes of some tensors; ``values`` as ``models.reference.saved.sizes`` gives them."""
    values = values | {"QKV": (values["N"] + 2 * values["K"]) * values["D"]}
    floats = [(text, shape, 4) for text, shape in (_SHAPES | _EXPERT[kind]).items()]
    of = {n: (shape, size) for text, shape, size in floats for n in text.split()}
    of |= {n: found for text, found in _INTEGERS.items() for n in text.split()}
    total = 0
    for name in names:
        shape, size = of[name]
        for symbol in shape.split():
            size *= values[symbol]
        total += size
    return total


def held(kind: str, replayed: frozenset[str]) -> set[str]:
    """The tensors that a block holds after its forward."""
    rows = ROWS[kind]
    if not replayed:
        return {name for row in rows.values() for name in row.saves}
    again = replayed | {ADDITION}
    maker = {name: region for region, row in rows.items() for name in row.makes}
    saved = {region: row for region, row in rows.items() if region not in again}
    # What a saved region's gradient reads is made again if it came from a replayed one.
    bound = {n for row in saved.values() for n in row.saves if n in row.reads and (n == "x" or maker[n] in again)}
    kept = {n for row in saved.values() for n in row.saves} - bound
    needed = {n for n in _needed(rows, again, bound) if maker.get(n) in saved}
    return {"x"} | kept | needed | {n for row in saved.values() for n in row.kept}


def _needed(rows: dict[str, Row], again: frozenset[str], bound: set[str]) -> set[str]:
    """The tensors whose values a replay needs.

    What a replayed region saves of its inputs is one of them; all of its inputs are if it saves something that it
    makes itself, or if somebody needs its outputs.
    """
    needed = set(bound)
    for region, row in reversed(rows.items()):
        if region in again:
            if (set(row.saves) - set(row.reads)) or needed & set(row.makes):
                needed |= set(row.reads)
            needed |= set(row.saves) & set(row.reads)
    return needed
