"""Layers written down as a few operations, and random ones."""

from __future__ import annotations

from hypothesis import strategies as st

from hp_memory.estimate.tracing.record import BARE, HOST_READ, LayerTrace, Op, Saved, Storage

A, B, C = "gmm.up", "compute.act", "gmm.down"


def layer(ops, saved=(), sizes=None):
    """A layer from (region, reads, writes) of each operation and (storage, region) of what is saved; 0 is its input."""
    trace = LayerTrace("moe", (A, B, C))
    regions = {0: BARE} | {n: region for region, _, writes in reversed(ops) for n in writes}
    for number in range(max(regions) + 1):
        kind = "input" if number == 0 else "activation"
        nbytes = (sizes or {}).get(number, 100)
        trace.storages.append(Storage(number, (25,), "float32", nbytes, kind, regions.get(number, BARE), "forward"))
    trace.ops = [Op("Some" if w else HOST_READ, "forward", region, tuple(r), tuple(w)) for region, r, w in ops]
    trace.saved = [Saved(n, region, (25,)) for n, region in saved]
    trace.inputs, trace.outputs = (0,), tuple(ops[-1][2])
    for region, _, writes in ops:
        if region:
            trace.region_outputs[region] = (*trace.region_outputs.get(region, ()), *writes)
    return trace


@st.composite
def programs(draw):
    """Operations that read and write storages made before, in runs of regions with bare ones between."""
    ops, count = [], 1
    for region in (A, BARE, B, BARE, C):
        for _ in range(draw(st.integers(1, 3))):
            reads = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2))
            into = draw(st.sampled_from(["new", "new", "new", "in place", "host"]))
            if into == "new":
                ops.append((region, reads, [count]))
                count += 1
            else:
                ops.append((region, reads, [reads[0]] if into == "in place" and reads[0] else []))
    ops.append((C, [count - 1], [count]))
    saved = draw(st.lists(st.tuples(st.integers(0, count), st.sampled_from([A, B, C, BARE])), max_size=6))
    sizes = {n: 2**n for n in range(count + 1)}
    return layer(ops, saved, sizes)


@st.composite
def traces_with_backward(draw):
    """The same with a backward that reads what was saved, last first, and makes gradients."""
    trace = draw(programs())
    for item in reversed(trace.saved):
        number = len(trace.storages)
        trace.storages.append(Storage(number, (25,), "float32", 70, "activation", item.region, "backward"))
        trace.ops.append(Op("Grad", "backward", item.region, (item.storage,), (number,)))
    trace.memo.clear()
    return trace
