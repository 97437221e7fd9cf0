"""Random graphs with settings, in the form of the golden cases, from a seed: what varies is named by the kind."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What a case may contain beside plain kernels."""

    strategy: str = "distance"
    parameters: bool = False
    activations: bool = True
    tuples: bool = False
    sizes: bool = False
    adaptive: bool = False
    repeated_outputs: bool = False
    nodes: tuple[int, int] = (3, 28)


KINDS = {
    "distance": Kind(),
    "distance of many kernels": Kind(nodes=(60, 120)),
    "distance with tuples": Kind(tuples=True),
    "peak": Kind("peak"),
    "peak of many kernels": Kind("peak", nodes=(40, 80)),
    "parameters": Kind(parameters=True, activations=False),
    "both": Kind(parameters=True),
    "both, peak": Kind("peak", parameters=True),
    "peak with tuples": Kind("peak", tuples=True),
    "peak with kernel sizes": Kind("peak", sizes=True),
    "peak with kernel sizes and tuples": Kind("peak", sizes=True, tuples=True),
    "adaptive": Kind("peak", adaptive=True),
    "adaptive with kernel sizes": Kind("peak", sizes=True, adaptive=True),
    "adaptive with kernel sizes, many kernels": Kind("peak", sizes=True, adaptive=True, nodes=(30, 60)),
    "adaptive with kernel sizes and tuples": Kind("peak", sizes=True, adaptive=True, tuples=True),
    "repeated outputs": Kind(repeated_outputs=True),
    "repeated outputs, peak": Kind("peak", repeated_outputs=True),
}


def random_case(kind: Kind, seed: int) -> dict[str, Any]:
    """One case; the same for the same seed."""
    return _Maker(kind, random.Random(seed)).case()


class _Maker:
    def __init__(self, kind: Kind, dice: random.Random) -> None:
        self.kind, self.dice = kind, dice
        # Only some cases have each of these, so that the plain ones are tried too.
        self.own = {
            name: dice.random() < 0.3 for name in ("view", "inplace", "ref", "attributes", "copies", "branches")
        }

    def often(self, name: str, share: float) -> bool:
        return self.own[name] and self.dice.random() < share

    def case(self) -> dict[str, Any]:
        dice = self.dice
        parameters = [
            {"name": f"p{k}", "bytes": self.bytes(), "remote": self.kind.parameters and dice.random() < 0.6}
            for k in range(dice.randint(1, 3))
        ]
        self.parameters = [p["name"] for p in parameters]
        self.made: list[dict[str, Any]] = []
        for k in range(dice.randint(*self.kind.nodes)):
            self.made.append(self.node(k))
        return {
            "config": self.config(),
            "parameters": parameters,
            "nodes": self.made,
            "graph_outputs": self.graph_outputs(),
        }

    def bytes(self) -> int:
        return 4 * self.dice.choice([1, 16, self.dice.randint(1, 3000), self.dice.randint(1, 60000)])

    def source(self) -> list[Any]:
        """A parameter, or an output of a kernel: often a recent one, else any, as in a backward pass."""
        dice = self.dice
        if not self.made or dice.random() < 0.15:
            load = ["load"] if dice.random() < 0.3 else []
            return [dice.choice(self.parameters), 0, *load]
        node = self.made[-dice.randint(1, min(3, len(self.made)))] if dice.random() < 0.5 else dice.choice(self.made)
        return [node["name"], dice.randrange(len(node["output_bytes"]))]

    def node(self, k: int) -> dict[str, Any]:
        dice = self.dice
        inputs = [self.source() for _ in range(dice.choice([1, 1, 2, 2, 3]))]
        outputs = dice.choice([1, 1, 2, 3]) if self.kind.tuples else 1
        node: dict[str, Any] = {"name": f"n{k}", "op": "Op", "inputs": inputs}
        if self.own["branches"] and dice.random() < 0.08 and self.made:
            # Tuples read through two of them in a row aren't told apart by MindSpore's own rules.
            switches = {node["name"] for node in self.made if node["op"] == "ConditionSwitch"}
            inputs = [ref for ref in [*inputs, self.source()][:3] if not self.kind.tuples or ref[0] not in switches]
            inputs = inputs or [[self.parameters[0], 0]]
            node |= {"op": "ConditionSwitch", "inputs": inputs}
            outputs = max(1, len(inputs) - 1) if self.kind.tuples else 1
        elif self.often("copies", 0.08):
            node |= {"op": "CopyToHost", "inputs": inputs[:1]}
            outputs = 1
        node["output_bytes"] = [self.bytes() for _ in range(outputs)]
        node |= self.marks(node)
        if self.kind.sizes:
            node["device_bytes"] = [self.dice.choice([b, b + 100, 4096]) for b in node["output_bytes"]]
            node["workspace_bytes"] = dice.choice([0, 0, dice.randint(0, 100_000)])
        return node

    def marks(self, node: dict[str, Any]) -> dict[str, Any]:
        dice = self.dice
        marks: dict[str, Any] = {"view": False, "inplace": False, "ref_outputs": {}}
        marks |= dict.fromkeys(("enable_offload", "prefetch_distance", "release_distance"))
        if node["op"] == "Op" and len(node["output_bytes"]) == 1:
            marks["view"] = self.often("view", 0.2)
            marks["inplace"] = not marks["view"] and self.often("inplace", 0.2)
        if node["op"] == "Op" and not marks["view"] and self.often("ref", 0.2):
            marks["ref_outputs"] = {str(dice.randrange(len(node["output_bytes"]))): dice.randrange(len(node["inputs"]))}
        if self.often("attributes", 0.2):
            name = dice.choice(["enable_offload", "prefetch_distance", "release_distance"])
            marks[name] = dice.random() < 0.3 if name == "enable_offload" else dice.randint(0, 8)
        return marks

    def graph_outputs(self) -> list[list[Any]]:
        dice, last = self.dice, self.made[-1]
        outputs = [[last["name"], dice.randrange(len(last["output_bytes"]))]]
        if dice.random() < 0.3:
            node = dice.choice(self.made)
            outputs.append([node["name"], dice.randrange(len(node["output_bytes"]))])
        if self.kind.repeated_outputs:
            outputs += [dice.choice(outputs) for _ in range(dice.randint(1, 2))]
            return outputs
        return [ref for k, ref in enumerate(outputs) if ref not in outputs[:k]]

    def config(self) -> dict[str, Any]:
        dice, peak = self.dice, self.kind.strategy == "peak"
        count = len(self.made)
        config = {
            "strategy": self.kind.strategy,
            "enable_parameter": self.kind.parameters,
            "enable_activation": self.kind.activations,
            "select_distance": dice.randint(1, max(2, count // 3)),
            "select_num": dice.choice([100, 100, 3, 1]),
            "prefetch_distance": dice.choice([0, 1, 2, dice.randint(0, count + 2)]),
            "release_distance": dice.choice([0, 0, 1, dice.randint(0, count)]),
        }
        if self.kind.repeated_outputs:
            config["prefetch_distance"] = count + dice.randint(0, 3)
        if not peak and dice.random() < 0.15:
            config["filter_percentage"] = str(dice.choice([10, 30, 50, 77, 100]))
        if peak:
            total = sum(sum(node["output_bytes"]) for node in self.made)
            config["max_device_memory"] = max(1, int(total * dice.choice([0.0, 0.1, 0.2, 0.3, 0.5])))
            config["score_weights"] = dice.choice([[1, 1, 1, 1], [2, 1, 1, 0.5], [1, 0, 0, 0], [0.3, 0.7, 0.1, 2]])
        if self.kind.adaptive:
            config |= self.adaptive()
        return config

    def adaptive(self) -> dict[str, Any]:
        dice = self.dice
        release, prefetch = dice.choice([(True, True), (True, False), (False, True)])
        return {
            "adaptive_release": release,
            "adaptive_prefetch": prefetch,
            "kernel_time_us": dice.choice([0.5, 1.0, 3.0, 10.0]),
            "d2h_bandwidth_gbps": dice.choice([5.0, 20.0]),
            "h2d_bandwidth_gbps": dice.choice([5.0, 55.0]),
        }
