from __future__ import annotations

import json
from pathlib import Path

import pytest

from hp_memory.cli import main

DATA = Path(__file__).parents[2] / "data" / "offload"
MOE = f"graph={DATA / 'attn_moe_train_step.actor_set.ir'}"


@pytest.fixture
def hp_memory(tmp_path, capsys):
    def hp_memory(*args):
        with pytest.raises(SystemExit) as exit_:
            main(["offload", *args, f"run_dir={tmp_path / 'run'}"])
        shown = capsys.readouterr()
        return exit_.value.code, shown.out + shown.err, tmp_path / "run"

    return hp_memory


def test_plan_writes_json_and_a_picture(hp_memory):
    code, shown, run_dir = hp_memory("plan", MOE, "offload.select_distance=20", "offload.prefetch_distance=10")
    record = json.loads((run_dir / "graph_plan.json").read_text())
    assert code == 0, shown
    assert "60 activations of 333 kernels moved" in shown
    assert len([op for ops in record["plan"]["after"] for op in ops if op["op"] == "copy_to_host"]) == 60
    assert (run_dir / "timeline.png").stat().st_size > 10_000


def test_a_plan_with_an_error_hazard_is_exit_code_1(hp_memory):
    code, shown, _ = hp_memory("plan", MOE, "offload.select_distance=20", "offload.prefetch_distance=50")
    assert code == 1
    assert "reload before save" in shown
    assert "prefetch_distance=22" in shown


def test_timeline_tells_kinds(hp_memory):
    code, shown, run_dir = hp_memory("timeline", MOE, "offload.kernel_time_us=2")
    record = json.loads((run_dir / "timeline.json").read_text())
    assert code == 0, shown
    assert record["with"]["device_peak_bytes"] < record["without"]["device_peak_bytes"]
    assert record["kinds"]["device and host memory"] == "MODELLED"


def test_advise_says_what_it_tried(hp_memory):
    code, shown, run_dir = hp_memory("advise", MOE, "offload.kernel_time_us=2", "evaluations=12")
    assert code == 0, shown
    assert "offload.auto_offload=activation offload.strategy=" in shown
    assert len(json.loads((run_dir / "advice.json").read_text())["trials"]) <= 12
    assert (run_dir / "search.png").exists()


def test_verify_reports_a_run_of_another_graph(hp_memory):
    code, shown, run_dir = hp_memory("verify", MOE, f"trace={DATA / 'peak_0006.trace.log'}")
    assert code == 1
    assert "333 kernels planned, 18 run" in shown
    assert len(json.loads((run_dir / "verify.json").read_text())["differences"]) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plan"], "graph=''"),
        ([MOE], "action"),
        (["plan", "graph=nowhere.ir"], "no such file"),
        (["plan", MOE, "offload.select_num=-1"], "offload.select_num"),
        (["plan", MOE, "offload=weight", "remote=[nothing*]"], "matches no parameter"),
        (["plan", MOE, "remote=[nothing*]"], "weights stay where they are"),
        (["plan", MOE, "exposed_us=1"], "isn't read by `offload plan`, but by advise"),
        (["plan", MOE, "offload.max_device_memory=7"], "offload.strategy=peak only"),
        (["plan", MOE, "offload.sliding_window=true"], "isn't modelled by the planner"),
        (["plan", MOE, "offload.kernel_time_us=inf"], "offload.kernel_time_us"),
        (["advise", MOE, "offload=none"], "moves nothing"),
        (["timeline", f"graph={DATA / 'dumps' / 'nonzero.ir'}"], "has a dynamic shape and unknown bytes"),
        (["verify", MOE, f"trace={DATA / 'mlp_train_step.actor_set.ir'}"], "trace="),
    ],
)
def test_bad_use_is_exit_code_2(hp_memory, args, words):
    code, shown, _ = hp_memory(*args)
    assert code == 2
    assert words in shown


def test_a_dynamic_graph_is_planned_by_distance(hp_memory):
    code, shown, _ = hp_memory("plan", f"graph={DATA / 'dumps' / 'nonzero.ir'}", "offload.select_distance=1")
    assert code == 0, shown
    assert "outputs of unknown bytes" in shown


def test_weights_have_their_loads_in_the_table_and_a_baseline_on_the_device(hp_memory):
    graph = f"graph={DATA / 'mlp_train_step.actor_set.ir'}"
    code, shown, run_dir = hp_memory("plan", graph, "offload=weight", "remote=[*weight]")
    assert code == 0, shown
    assert "17 loads of" in shown
    record = json.loads((run_dir / "timeline.json").read_text())
    assert record["with"]["device_peak_bytes"] < record["without"]["device_peak_bytes"]
    assert record["without"]["host_peak_bytes"] == 0 < record["with"]["host_peak_bytes"]
