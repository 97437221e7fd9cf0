"""A plan run on tokens: an independent, slow account of which reads find the bytes they expect."""

from __future__ import annotations

from typing import Any


def unsafe(case: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether a plan, as JSON, reads freed device memory or loads a host copy that isn't there yet.

    Every buffer is a cell ``[alive]``; names are the texts of references, and names of one memory hold the same cell.
    """
    memory: dict[str, list[bool]] = {str([p["name"], 0]): [True] for p in case["parameters"]}
    holds: dict[str, list[bool] | None] = {str([p["name"], 0]): None for p in case["parameters"] if p["remote"]}
    hosts = {str([p["name"], 0]) for p in case["parameters"]}
    copies: dict[str, list[bool]] = {}

    def cell(ref: Any) -> list[bool]:
        if isinstance(ref, dict):
            return copies[f"{ref['h2d_of']}#{ref['copy']}"]
        return memory[str(ref[:2])]

    def run(operations: list[dict[str, Any]]) -> bool:
        for operation in operations:
            ref, name = operation["data"], str(operation["data"])
            if operation["op"] in ("copy_to_host", "copy_to_host_inplace"):
                if not cell(ref)[0]:
                    return True
                hosts.add(name)
            elif operation["op"] == "copy_to_device":
                if name not in hosts:
                    return True
                copies[f"{ref}#{operation['copy']}"] = [True]
            elif operation["op"] == "assign":
                holds[name] = copies[f"{ref}#{operation['copy']}"] if operation["side"] == "device" else None
            elif operation["op"] == "free" and operation["side"] == "device":
                held = holds[name] if name in holds else cell(ref)
                if held is not None:
                    held[0] = False
        return False

    if run(result["pre"]):
        return True
    for node, operations in zip(case["nodes"], result["after"], strict=True):
        inputs = result["inputs"].get(node["name"], node["inputs"])
        switch = node["op"] == "ConditionSwitch"
        if not all(cell(ref)[0] for ref in (inputs[:1] if switch else inputs)):
            return True
        for index in range(len(node["output_bytes"])):
            shared = node["ref_outputs"].get(str(index))
            if node["view"] or node["inplace"]:
                shared = 0
            elif switch:
                shared = index + 1 if index + 1 < len(inputs) else None
            memory[str([node["name"], index])] = [True] if shared is None else cell(inputs[shared])
        if run(operations):
            return True
    return not all(cell(ref)[0] for ref in result["graph_outputs"])
