"""What must hold for any graph and any settings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hp_memory.offload import (
    Graph,
    HyperOffloadInput,
    Node,
    OffloadSettings,
    Operation,
    Output,
    Parameter,
    ParameterRef,
    run,
)
from hp_memory.offload.hazards import find_hazards, is_safe
from hp_memory.offload.timeline import baseline, kernel_times, simulate


@st.composite
def graphs(draw):
    count = draw(st.integers(2, 24))
    nodes = []
    for k in range(count):
        sources = [ParameterRef("w"), *(Output(j) for j in range(k))]
        inputs = draw(st.lists(st.sampled_from(sources), min_size=1, max_size=3))
        nbytes = draw(st.integers(1, 4000))
        view = isinstance(inputs[0], Output) and draw(st.integers(0, 9)) == 0
        nodes.append(Node(f"n{k}", "Op", tuple(inputs), (nbytes,), view=view))
    outputs = {Output(count - 1), *draw(st.lists(st.integers(0, count - 1).map(Output), max_size=1))}
    return Graph(nodes, {"w": Parameter("w", 64, draw(st.booleans()))}, tuple(sorted(outputs)))


settings_of = st.builds(
    OffloadSettings,
    auto_offload=st.sampled_from(["activation", "all"]),
    strategy=st.sampled_from(["distance", "peak"]),
    select_distance=st.integers(0, 8),
    select_num=st.sampled_from([0, 2, 100]),
    prefetch_distance=st.integers(0, 12),
    release_distance=st.integers(0, 12),
    max_device_memory=st.integers(1, 40000),
    headroom=st.just(0),
)


def plans():
    return st.builds(lambda graph, settings: run(HyperOffloadInput(graph, settings)), graphs(), settings_of)


def activations(plan, kind):
    return [op for op in plan.operations if op.op == kind and isinstance(op.data, Output)]


@given(plans())
def test_every_moved_activation_is_saved_once_after_its_producer(plan):
    saves = [operation.data for operation in activations(plan, "copy_to_host")]
    assert sorted(saves) == sorted(info.data_node for info in plan.offload_infos)
    assert all(operation.slot == operation.data.node for operation in activations(plan, "copy_to_host"))


@given(plans())
def test_every_use_after_the_gap_reads_a_reload(plan):
    for info in plan.offload_infos:
        for use in (use for group in info.replace_info_list for use in group.replace_rest_nodes):
            read = plan.inputs[use.node][use.index]
            assert isinstance(read, Operation)
            assert read.data == info.data_node
            assert read.slot < use.node


@given(plans())
def test_a_plan_called_safe_reloads_after_saving_and_frees_only_what_is_no_longer_read(plan):
    if not is_safe(find_hazards(plan)):
        return
    order = {step: k for k, step in enumerate(plan.execution_order()) if isinstance(step, Operation)}
    saves = {operation.data: order[operation] for operation in activations(plan, "copy_to_host")}
    for reload in activations(plan, "copy_to_device"):
        assert saves[reload.data] < order[reload]
    freed = {operation.data: operation.slot for operation in activations(plan, "free") if operation.side == "device"}
    for position in range(len(plan.graph.nodes)):
        for source in plan.inputs_of(position):
            assert freed.get(source, position) >= position or isinstance(source, Operation)


@given(plans())
def test_bytes_are_conserved(plan):
    """What is moved out comes back or is freed: device memory ends where it would have, and the host is empty."""
    if plan.raises or not is_safe(find_hazards(plan)):
        return
    times = kernel_times(plan.graph, plan.settings)
    moved, stayed = simulate(plan, times), simulate(baseline(plan.graph, plan.settings), times)
    moves = plan.settings.moves_parameters
    remote = sum(parameter.nbytes for parameter in plan.graph.parameters.values() if parameter.remote and moves)
    assert moved.device.nbytes[-1] == stayed.device.nbytes[-1] - remote
    assert moved.device.nbytes.min() >= 0
    assert (moved.host.nbytes[-1] if len(moved.host.nbytes) else 0) == remote
    out = sum(span.nbytes for span in moved.transfers if span.direction == "to host" and span.label != "w")
    assert out == sum(plan.graph.nbytes(info.data_node) for info in plan.offload_infos)
    assert moved.total_us >= stayed.total_us


@given(plans())
def test_sends_and_receives_pair_up_in_order(plan):
    open_events = {}
    for operation in plan.operations:
        key = (operation.data, operation.event)
        if operation.op == "send":
            open_events[key] = open_events.get(key, 0) + 1
        elif operation.op == "recv":
            open_events[key] = open_events.get(key, 0) - 1
            assert open_events[key] >= 0
    assert not any(open_events.values())


@given(graphs(), st.integers(0, 8), st.data())
def test_distances_up_to_the_select_distance_are_always_safe(graph, select, data):
    """The rule of thumb of the docs, for graphs whose outputs are read by nothing else."""
    below = st.integers(0, select)
    plan = run(
        HyperOffloadInput(
            graph,
            OffloadSettings(
                auto_offload="activation",
                select_distance=select,
                prefetch_distance=data.draw(below),
                release_distance=data.draw(below),
            ),
        )
    )
    for hazard in [] if plan.raises else find_hazards(plan):
        assert "just reloaded" not in hazard.why
        assert hazard.kind != "reload before save"
