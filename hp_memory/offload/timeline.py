"""A planned step in time: kernels on the compute stream, copies on a transfer stream, device and host memory.

The transfer stream runs copies one after the other in the order of the plan. A copy-out starts when its producer is
done, a reload when the compute stream reaches its slot; compute waits where the plan has a receive. Reloads before the
first kernel have no events, so the step begins when they are done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

import numpy as np

from hp_memory.offload.buffers import Buffers, buffers_of, reloads_by_use
from hp_memory.offload.draft import source_of
from hp_memory.offload.graph import Graph, Output, ParameterRef
from hp_memory.offload.operations import (
    ASSIGN,
    BEFORE_D2H,
    COMPUTE_STREAM,
    D2H,
    DEVICE,
    FREE,
    H2D,
    PRE,
    RECV,
    SEND,
    WRITE_BACK,
    HyperOffloadOperations,
    Operation,
)
from hp_memory.offload.optimizer import HyperOffloadPlan
from hp_memory.offload.settings import OffloadSettings

MEASURED, TRACED, MODELLED = "MEASURED", "TRACED", "MODELLED"
TO_HOST, TO_DEVICE = "to host", "to device"


@dataclass(slots=True)
class Span:
    """Something that takes time on a stream, microseconds from the start of the step."""

    label: str
    start_us: float
    end_us: float
    nbytes: int = 0
    direction: str = ""


@dataclass(slots=True)
class Curve:
    """Bytes after each change, sorted by time."""

    times_us: np.ndarray
    nbytes: np.ndarray

    @property
    def peak(self) -> int:
        return int(self.nbytes.max(initial=0))

    @property
    def peak_at_us(self) -> float:
        return float(self.times_us[int(self.nbytes.argmax())]) if len(self.nbytes) else 0.0


@dataclass(slots=True)
class Timeline:
    """One simulated step. ``kinds`` says where each figure comes from."""

    device: Curve
    host: Curve
    kernel_start_us: np.ndarray
    kernel_end_us: np.ndarray
    transfers: list[Span]
    waits: list[Span]
    total_us: float
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def exposed_us(self) -> float:
        """Time the compute stream waits for copies."""
        return sum(wait.end_us - wait.start_us for wait in self.waits)

    @property
    def busy_us(self) -> float:
        """Time the transfer stream copies."""
        return sum(span.end_us - span.start_us for span in self.transfers)

    def peak_kernel(self) -> int:
        """Position of the kernel that runs at the device's peak."""
        return max(0, int(np.searchsorted(self.kernel_start_us, self.device.peak_at_us, side="right")) - 1)


def baseline(graph: Graph, settings: OffloadSettings) -> HyperOffloadPlan:
    """The same graph with nothing moved: weights that are remote in the plan are on the device."""
    off = replace(settings, auto_offload="none")
    return HyperOffloadPlan(graph, off, HyperOffloadOperations(), outputs=list(graph.outputs))


def kernel_times(graph: Graph, settings: OffloadSettings, measured: dict[str, float] | None = None) -> np.ndarray:
    """Microseconds per kernel: the measured time of its name, else ``kernel_time_us``."""
    measured = measured or {}
    return np.array([measured.get(node.name, settings.kernel_time_us) for node in graph.nodes])


def simulate(plan: HyperOffloadPlan, times_us: np.ndarray, measured: bool = False) -> Timeline:
    """Run a plan. ``times_us``: of each kernel; ``measured``: whether they were."""
    return Simulation(plan, times_us).run(
        {
            "tensor bytes": TRACED,
            "device and host memory": MODELLED,
            "kernel times": MEASURED if measured else MODELLED,
            "transfer and exposed time": MODELLED,
        }
    )


def _stream(operation: Operation) -> int:
    assert operation.stream is not None, "send and recv have a stream"
    return operation.stream


class Simulation:
    """Two stream clocks, events between them, and every change of memory with its time."""

    def __init__(self, plan: HyperOffloadPlan, times_us: np.ndarray) -> None:
        self.plan, self.times = plan, times_us
        self.buffers: Buffers = buffers_of(plan)
        self.reloads = reloads_by_use(plan, self.buffers)
        self.clocks = [0.0, 0.0]
        self.sent: dict[tuple, deque[float]] = defaultdict(deque)
        self.device: list[tuple[float, int]] = []
        self.host: list[tuple[float, int]] = []
        self.saved = {operation.data for operation in plan.operations.of_kind(D2H)}
        self.written_back = {operation.data for operation in plan.operations.of_kind(WRITE_BACK)}
        self.alive: set = set()
        self.transfers: list[Span] = []
        self.waits: list[Span] = []

    def run(self, kinds: dict[str, str]) -> Timeline:
        for parameter in self.plan.graph.parameters.values():
            remote = parameter.remote and self.plan.settings.moves_parameters
            (self.host if remote else self.device).append((0.0, parameter.nbytes))
        self.load_before_start()
        starts, ends = [], []
        dying = self.deaths()
        for position in range(len(self.plan.graph.nodes)):
            self.allocate_outputs(position)
            starts.append(self.clocks[0])
            self.clocks[0] += float(self.times[position])
            ends.append(self.clocks[0])
            self.free_after(position, dying)
            for operation in self.plan.operations.after(position):
                self.step(operation)
        total = max(self.clocks)
        curves = (curve(self.device), curve(self.host))
        return Timeline(*curves, np.array(starts), np.array(ends), self.transfers, self.waits, total, kinds)

    def load_before_start(self) -> None:
        for reload in self.plan.operations.pre:
            self.step(reload)
        if self.clocks[1] > 0:
            self.waits.append(Span("loads before the first kernel", 0.0, self.clocks[1]))
            self.clocks[0] = self.clocks[1]

    def deaths(self) -> dict[int, list[Output]]:
        """Activations by the kernel after which nothing needs them; saved ones are freed by the plan instead."""
        found: dict[int, list[Output]] = defaultdict(list)
        for position, node in enumerate(self.plan.graph.nodes):
            for index in range(len(node.output_bytes)):
                output = Output(position, index)
                if output not in self.buffers.root and output not in self.saved:
                    found[self.buffers.last_use.get(output, position)].append(output)
        return found

    def allocate_outputs(self, position: int) -> None:
        for index, nbytes in enumerate(self.plan.graph.nodes[position].output_bytes):
            output = Output(position, index)
            if output not in self.buffers.root:
                self.device.append((self.clocks[0], nbytes))
                self.alive.add(output)

    def free_after(self, position: int, dying: dict[int, list[Output]]) -> None:
        for output in dying.get(position, ()):
            self.free(output)
        for reload in self.reloads.get(position, ()):
            if reload not in self.written_back:
                self.free(reload)

    def free(self, buffer: Output | ParameterRef | Operation) -> None:
        if buffer in self.alive:
            self.alive.discard(buffer)
            self.device.append((self.clocks[0], -self.plan.graph.nbytes(source_of(buffer))))

    def step(self, operation: Operation) -> None:
        if operation.op == SEND:
            self.sent[(operation.data, operation.event)].append(self.clocks[_stream(operation)])
        elif operation.op == RECV:
            self.receive(operation)
        elif operation.op in (D2H, WRITE_BACK, H2D):
            self.copy(operation)
        elif operation.op == FREE and operation.side == DEVICE:
            self.free(operation.data)
        elif operation.op == FREE and isinstance(operation.data, Output):
            self.host.append((self.clocks[0], -self.plan.graph.nbytes(operation.data)))
        else:
            assert operation.op in (ASSIGN, FREE)  # a change of name, no change of memory

    def receive(self, operation: Operation) -> None:
        queue = self.sent[(operation.data, operation.event)]
        arrival = queue.popleft() if queue else 0.0
        stream = _stream(operation)
        now = self.clocks[stream]
        if arrival > now:
            if stream == COMPUTE_STREAM and operation.event != BEFORE_D2H:
                self.waits.append(Span(self.plan.label(operation.data), now, arrival))
            self.clocks[stream] = arrival

    def copy(self, operation: Operation) -> None:
        source = source_of(operation.data)
        nbytes = self.plan.graph.nbytes(source)
        to_device = operation.op == H2D
        settings = self.plan.settings
        gbps = settings.h2d_bandwidth_gbps if to_device else settings.d2h_bandwidth_gbps
        # A reload is launched when compute reaches its slot; a copy-out waits for its event by itself.
        start = max(self.clocks[1], self.clocks[0]) if to_device and operation.slot != PRE else self.clocks[1]
        self.clocks[1] = start + nbytes / (gbps * 1000)
        direction = TO_DEVICE if to_device else TO_HOST
        self.transfers.append(Span(self.plan.label(source), start, self.clocks[1], nbytes, direction))
        if to_device:
            self.device.append((start, nbytes))
            self.alive.add(operation)
        elif operation.op == D2H:
            self.host.append((start, nbytes))


def curve(changes: list[tuple[float, int]]) -> Curve:
    order = sorted(range(len(changes)), key=lambda k: changes[k][0])  # stable: program order at equal times
    times = np.array([changes[k][0] for k in order])
    return Curve(times, np.cumsum(np.array([changes[k][1] for k in order], dtype=np.int64)))
