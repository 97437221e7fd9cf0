"""What was learned of a block's saved regions: which outputs a replay needs, by the sequence in which they are called.

The first forward is watched. A later forward that calls the same regions in the same order drops the outputs that the
watched one didn't need, each after the last saved call that was given it. A forward that takes another way keeps
everything from where it leaves the known ones, and the next forward is watched again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from mindspore import Tensor

from hp_memory.activation import marks
from hp_memory.activation.liveness import Needs, Output
from hp_memory.errors import ReplayError

if TYPE_CHECKING:
    from hp_memory.activation.exclude import Region
    from hp_memory.activation.records import Record
    from hp_memory.activation.watching import Watch

_MOST_PATHS = 16  # ways through one block that are learned; a forward on any other keeps what it can't be sure of


class Path:
    """The saved calls of one watched forward, in order, and what became of their outputs.

    Attributes:
        regions: weak, because plans of plain functions are kept by function and regions hold the Cell they belong to.
        leaves: number of output tensors of each call.
        kept: outputs that a replay needs.
        until: of the others, see ``marks.Ghost``.
        drops: outputs to drop when so many calls have been made.
    """

    def __init__(self, records: list[Record], needs: Needs) -> None:
        self.regions = [weakref.ref(record.region) for record in records]
        self.leaves = [record.leaves for record in records]
        # Which of several calls of one region is read may be data's choice (experts in a loop): treat them alike.
        alike = {(id(records[index].region), leaf) for index, leaf in needs.readers}
        self.kept = {(i, leaf) for i, leaf in outputs_of(records) if (id(records[i].region), leaf) in alike}
        self.until = {output: needs.until.get(output, 0) for output in outputs_of(records) if output not in self.kept}
        self.dead = needs.dead
        self.released = {output: max(needs.released.get(output, 0), output[0] + 1) for output in self.until}
        self.drops = self._by_call()

    def _by_call(self) -> list[list[Output]]:
        drops: list[list[Output]] = [[] for _ in range(len(self.regions) + 1)]
        for output in self.until:
            drops[self.released[output]].append(output)
        return drops

    def keep(self, output: Output) -> None:
        """A replay needs this one after all."""
        self.kept.add(output)
        self.until.pop(output, None)

    def takes_the_way_of(self, other: Path) -> bool:
        return self.leaves == other.leaves and [ref() for ref in self.regions] == [ref() for ref in other.regions]

    def join(self, other: Path) -> None:
        """Adds what another watched forward on this very path needed."""
        for output in other.kept:
            self.keep(output)
        for output in self.until:
            self.until[output] = max(self.until[output], other.until[output])
            self.released[output] = max(self.released[output], other.released[output])
        self.dead |= other.dead
        self.drops = self._by_call()

    def leads_to(self, index: int, record: Record) -> bool:
        """Whether this path's call ``index`` is the one that ``record`` was made by."""
        return (
            index < len(self.regions) and self.regions[index]() is record.region and self.leaves[index] == record.leaves
        )


class Plan:
    """Every path that was learned of one block."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.dead: frozenset[str] = frozenset()
        self._strayed = False

    @property
    def wants_watch(self) -> bool:
        """Whether the next forward is to be watched."""
        return not self.paths or (self._strayed and len(self.paths) < _MOST_PATHS)

    def learn(self, path: Path) -> None:
        self._strayed = False
        known = next((known for known in self.paths if known.takes_the_way_of(path)), None)
        if known is None:
            self.paths.append(path)
        else:
            known.join(path)
        self.dead |= path.dead

    def strayed(self) -> None:
        self._strayed = True


class Course:
    """Where a forward is on the learned paths; drops outputs as they confirm that no replay needs them."""

    def __init__(self, plan: Plan, records: list[Record], guarded: dict) -> None:
        self.plan = plan
        self.records = records
        self.guarded = guarded  # what is checked for writes at the end of the forward, by output
        self.paths = list(plan.paths)

    def called(self) -> None:
        """A saved region was called and has left its record."""
        index = len(self.records) - 1
        self.paths = [path for path in self.paths if path.leads_to(index, self.records[index])]
        if not self.paths:
            return
        for output in self.paths[0].drops[index + 1]:
            if all(output in path.until for path in self.paths):
                self._drop(output, max(path.until[output] for path in self.paths))

    def saved(self, tensor: Tensor, token: object) -> None:
        """A replayed operation saves ``tensor``: if that is an output the learned paths didn't need, it is kept now."""
        output = marks.produced(tensor, token)
        if output is not None:
            for path in self.paths:
                path.keep(output)
            self.records[output[0]].restore(output[1], tensor)

    def end(self) -> None:
        """The forward ended: on a known path, or not."""
        ended = [path for path in self.paths if len(path.regions) == len(self.records)]
        if not ended:
            self.plan.strayed()
            return
        for output, until in ended[0].until.items():
            self._drop(output, until)

    def _drop(self, output: Output, until: int) -> None:
        self.guarded.pop(output, None)
        self.records[output[0]].drop(output[1], until)


def outputs_of(records: list[Record]) -> list[Output]:
    return [(index, leaf) for index, record in enumerate(records) for leaf in range(record.leaves)]


def learn(watch: Watch, records: list[Record], plan: Plan, guarded: dict) -> None:
    """End of a watched forward: adds its path to the plan, and drops what this forward still holds for nothing."""
    needs = watch.trace.settle(outputs_of(records))
    for (index, _), reader in needs.readers.items():
        if reader is not None and records[index].region.save_output is False:
            raise ReplayError(
                f"excluded region {records[index].region.name} has save_output=False, but {reader} reads its output "
                "outside excluded regions and will be replayed; leave save_output out"
            )
    path = Path(records, needs)
    plan.learn(path)
    for output, until in path.until.items():
        guarded.pop(output, None)
        records[output[0]].drop(output[1], until)


def describe(plan: Plan) -> list[tuple[Region, list[bool]]]:
    """(region, whether each of its outputs is kept) for the calls of the longest learned path."""
    path = max(plan.paths, key=lambda path: len(path.regions), default=None)
    if path is None:
        return []
    calls = [
        (ref(), [(index, leaf) in path.kept for leaf in range(path.leaves[index])])
        for index, ref in enumerate(path.regions)
    ]
    return [(region, kept) for region, kept in calls if region is not None]
