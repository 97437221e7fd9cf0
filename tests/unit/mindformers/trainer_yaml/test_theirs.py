"""A plan put into someone's own file: it is read back, and every line that says something else stays."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hp_memory.commands import export
from hp_memory.config.app import checked, to_object
from hp_memory.errors import ConfigError
from hp_memory.host.settings import HostSettings
from hp_memory.layout import LayerOverride, LayoutSettings, build_plan
from hp_memory.mindformers.families import fingerprint
from hp_memory.mindformers.trainer_yaml.document import load
from hp_memory.mindformers.trainer_yaml.insert import with_sections
from hp_memory.mindformers.trainer_yaml.reading import read

DATA = Path(__file__).parents[3] / "data" / "mindformers"
PYNATIVE, GRAPH = DATA / "deepseek_1b_pynative.yaml", DATA / "qwen3_32b.yaml"


def plan_of(reading):
    return build_plan(reading.layout, fingerprint(reading.model.model, reading.spread.parallel))


def replays(reading) -> list[tuple]:
    plan = plan_of(reading)
    return [layer.layout.replays(plan.regions(layer.layer)) for layer in plan.layers]


def put(file: Path, to: str, *overrides: str) -> str:
    return export.render(to_object(checked("export", [f"yaml={file}", f"to={to}", *overrides])))


def touched(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that went, and lines that came."""
    found = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    return [line[2:] for line in found if line[:1] == "-"], [line[2:] for line in found if line[:1] == "+"]


@pytest.mark.parametrize("to", export.TARGETS)
@pytest.mark.parametrize("layout", ["none", "full"])
def test_a_plan_in_a_pynative_file_is_read_back_and_nothing_else_changes(tmp_path, to, layout):
    text = put(PYNATIVE, to, "devices=8", f"layout={layout}")
    (tmp_path / "x.yaml").write_text(text)
    found = read(str(tmp_path / "x.yaml"), devices=8)
    everything = build_plan(
        LayoutSettings("x", "recompute" if layout == "full" else "save"), plan_of(found).fingerprint
    )
    assert replays(found) == [p.layout.replays(everything.regions(p.layer)) for p in everything.layers]
    gone, _ = touched(PYNATIVE.read_text(), text)
    assert set(gone) <= {"recompute:", "  mode: full", "  full_recompute_layer: [0-3]"}
    assert "global_batch_size: 8   # one sequence a device" in text


def test_without_a_layout_the_files_own_settings_change_their_form_only(tmp_path):
    text = put(PYNATIVE, "mindformers-callback", "devices=8")
    (tmp_path / "x.yaml").write_text(text)
    assert replays(read(str(tmp_path / "x.yaml"), 8)) == replays(read(str(PYNATIVE), 8))
    assert yaml.safe_load(text)["recompute"] == {"mode": "None"}


def test_our_earlier_plan_is_replaced_and_taken_out(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(
        PYNATIVE.read_text().replace("recompute:\n  mode: full\n  full_recompute_layer: [0-3]\n", "")
        + "callbacks:\n  - type: MFLossMonitor   # theirs\n  - type: HPMemoryCallback\n    plan: none\n\n# the end\n"
    )
    text = put(file, "mindformers-callback", "devices=8", "layout=full")
    assert [entry["type"] for entry in yaml.safe_load(text)["callbacks"]] == ["MFLossMonitor", "HPMemoryCallback"]
    assert yaml.safe_load(text)["callbacks"][1]["plan"]["name"] == "full"
    assert "- type: MFLossMonitor   # theirs\n" in text
    assert text.endswith("\n\n# the end\n")
    native = put(file, "mindformers-2.0", "devices=8", "layout=full")
    assert [entry["type"] for entry in yaml.safe_load(native)["callbacks"]] == ["MFLossMonitor"]


@pytest.mark.parametrize("to", ["mindformers-graph", "mindformers-callback"])
def test_a_plan_in_a_graph_file(tmp_path, to):
    text = put(GRAPH, to)
    (tmp_path / "x.yaml").write_text(text)
    assert replays(read(str(tmp_path / "x.yaml"))) == replays(read(str(GRAPH)))
    gone, come = touched(GRAPH.read_text(), text)
    assert gone == [line for line in GRAPH.read_text().splitlines() if line.startswith("recompute_config")]
    assert any("HPMemoryGraphCallback" in line for line in come) == (to == "mindformers-callback")


@pytest.mark.parametrize(
    ("file", "to", "overrides", "path"),
    [
        (GRAPH, "mindformers-2.0", [], "to"),
        (PYNATIVE, "mindformers-graph", ["devices=8"], "to"),
        (GRAPH, "mindformers-graph", ["layout=full", "layout.save=[attention.core]"], "layout.save"),
        (PYNATIVE, "mindformers-2.0", ["devices=8", "layout=full", "layout.save=[gmm.up]"], "layout.save"),
        (PYNATIVE, "mindformers-2.0", ["devices=8", "parallel.fsdp=4"], "parallel.fsdp"),
        (PYNATIVE, "mindformers-2.0", [], "data_parallel_shard"),
    ],
)
def test_what_cannot_be_said_is_refused(file, to, overrides, path):
    with pytest.raises(ConfigError) as error:
        put(file, to, *overrides)
    assert error.value.path.endswith(path)


def test_devices_without_a_file_are_refused():
    with pytest.raises(ConfigError, match="without yaml"):
        export.render(to_object(checked("export", ["to=mindformers-2.0", "recipe=tiny_qwen3_moe", "devices=8"])))


def test_an_anchor_that_others_use_stays(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("recompute: &r {mode: None}\nmine: *r\nmodel: {}\n")
    with pytest.raises((ConfigError, yaml.YAMLError)):
        with_sections(load(str(file)), {"recompute": {"mode": "full"}}, None)


WORDS = st.text("abc #'-", min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    sections=st.lists(st.tuples(st.sampled_from(["recompute", "swap", "lr_scheduler", "model", "callbacks"]),
                                st.lists(st.tuples(WORDS, st.integers(0, 99)), max_size=4)), unique_by=lambda s: s[0],
                      min_size=1),
    comments=st.lists(WORDS, max_size=3),
    end=st.sampled_from(["", "\n", "\n\n", "\n# end\n"]),
)  # fmt: skip
def test_random_files_keep_their_other_lines(tmp_path_factory, sections, comments, end):
    lines = []
    for name, keys in [("training", []), *sections]:
        lines += [f"# {comment}" for comment in comments]
        if name == "callbacks":
            lines += [f"{name}:", *(f"- type: T{value}  # {words}" for words, value in keys)]
        else:
            lines += [f"{name}:", *(f"  k{i}: {value}  # {words}" for i, (words, value) in enumerate(keys))]
    file = tmp_path_factory.getbasetemp() / "random.yaml"
    file.write_text("\n".join(lines) + end)
    ours = {"type": "HPMemoryCallback", "plan": "full"}
    text = with_sections(load(str(file)), {"recompute": {"mode": "None"}, "swap": None}, ours)
    data = yaml.safe_load(text)
    assert data["recompute"] == {"mode": "None"}
    assert data["callbacks"][-1] == ours
    kept = [line for line in lines if line not in _lines_of(lines, "recompute") + _lines_of(lines, "swap")]
    kept = [line for line in kept if line != "callbacks:" and not line.startswith("# ")]
    assert [line for line in text.splitlines() if line in kept] == kept
    assert sum(line.startswith("# ") for line in text.splitlines()) == sum(
        line.startswith("# ") for line in (("\n".join(lines) + end).splitlines())
    )


def _lines_of(lines: list[str], name: str) -> list[str]:
    if f"{name}:" not in lines:
        return []
    start = lines.index(f"{name}:")
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("  ")), len(lines))
    return lines[start:end]


def test_a_layout_for_some_layers_is_written_without_empty_entries(tmp_path):
    from hp_memory.mindformers.trainer_yaml.train_config import stanza

    layout = LayoutSettings("x", "save", layers=[LayerOverride("0", "recompute", save=[])])
    assert stanza(layout, HostSettings())["plan"]["layers"] == [{"layers": "0", "default": "recompute", "save": []}]
