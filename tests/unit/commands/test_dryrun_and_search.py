from __future__ import annotations

import json

import pytest

from hp_memory import cli
from hp_memory.config.app import compose, to_object
from hp_memory.errors import ConfigError


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(args))
    return ended.value.code


def test_a_sweep_over_layouts_makes_a_page_for_each_and_one_that_compares(mindspore, tmp_path, capsys):
    code = run("dryrun", "recipe=tiny_moe", "estimate=cpu", f"run_root={tmp_path}", "-m", "layout=none,full")
    assert code == 0
    pages = {p.name for p in tmp_path.rglob("*.html")}
    assert pages == {"report.html", "comparison.html"}
    reports = [json.loads(p.read_text()) for p in sorted(tmp_path.rglob("report.json"))]
    none, full = (r["stages"][0]["held_per_micro_batch"] for r in reports)
    assert full < none
    assert all(check["agrees"] for r in reports for check in r["checks"])
    out = capsys.readouterr().out
    assert "Layouts side by side" in out
    assert "MODELLED" in out
    assert "TRACED" in out


def test_the_search_prints_a_plan_that_every_command_takes(mindspore, tmp_path, capsys):
    folder = tmp_path / "run"
    code = run("search", "recipe=tiny_moe", "estimate=cpu", "budget=24MiB", "search.curve=3", f"run_dir={folder}")
    assert code == 0
    found = json.loads((folder / "search.json").read_text())
    assert found["peak"] <= found["budget"] == 24 * 2**20
    seconds = [point["seconds"] for point in found["curve"]]
    assert seconds == sorted(seconds, reverse=True)
    out = capsys.readouterr().out
    assert "the next GiB would save" in out
    assert "optimal among the ways considered" in out
    assert "doesn't pay" not in out
    # The overrides are words of a shell: the quotes go.
    words = found["overrides"].replace("'", "").split(" layout.")
    overrides = [words[0], *(f"layout.{word}" for word in words[1:])]
    for command in ("train", "dryrun", "export"):
        more = ["to=mindformers-callback"] if command == "export" else []
        assert to_object(compose(command, ["recipe=tiny_moe", *overrides, *more])).layout.name == "search"
    cfg = to_object(compose("dryrun", ["recipe=tiny_moe", "estimate=cpu", *overrides]))
    from hp_memory.estimate.ranks import estimate
    from hp_memory.experiment import experiment
    from hp_memory.experiment.workload import pipeline_of, workload

    work = workload(cfg, cfg.estimate)
    again = estimate(work, experiment.of("dryrun", cfg).plan, pipeline_of(cfg), cfg.estimate)
    assert again.worst.peak == found["peak"]


def test_when_nothing_fits_the_terms_to_blame_are_named_largest_first(mindspore, tmp_path, capsys):
    # So many optimizer states that activations aren't the trouble.
    model = "model.vocab_size=100000"
    args = ["recipe=tiny_moe", "estimate=cpu", model, "train.micro_batch_size=1", "model.seq_length=16"]
    assert run("search", *args, "budget=1MiB", f"run_dir={tmp_path / 'a'}") == 1
    least = capsys.readouterr().out.split("needs at least")[1]
    assert least.split(":")[1].strip().startswith("optimizer states")


def test_a_yaml_that_is_no_text_is_refused(mindspore, tmp_path, capsys):
    (tmp_path / "model.yaml").write_bytes(b"\xff\xfe\x00model")
    assert run("dryrun", f"yaml={tmp_path / 'model.yaml'}") == 2
    assert "can't be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["dryrun", "report=run.json"], "has no effect without"),
        (["dryrun", "compare-run"], "needs report=FILE"),
        (["dryrun", "band=0.1"], "has no effect without"),
        (["dryrun", "compare-run", "report=run.json", "band=10"], "a share of the measured peak"),
        (["dryrun", "compare-run", "report=/nowhere.json"], "isn't a run's report"),
        (["search", "budget=lots"], "not an amount of memory"),
        (["search", "budget=0"], "must be above 0"),
        (["search"], "budget"),
        (["dryrun", "recipe=tiny_moe"], "estimate=cpu"),
        (["dryrun", "yaml=/nowhere.yaml"], "can't be read"),
        (["dryrun", "estimate.colour=red"], "no such key"),
    ],
)
def test_what_cannot_be_done_ends_with_two_and_says_why(mindspore, args, words, capsys):
    import re

    assert run(*args) == 2
    assert re.search(words, capsys.readouterr().err)


def test_a_run_is_compared_rank_by_rank_and_a_report_of_zeros_is_refused(mindspore, tmp_path, capsys):
    report = tmp_path / "run.json"
    rank = {"pipeline_rank": 0, "allocated": 10 * 2**20, "reserved": 12 * 2**20, "terms": {"optimizer states": 2**20}}
    report.write_text(json.dumps({"ranks": [rank]}))
    args = ["dryrun", "compare-run", "recipe=tiny_moe", "estimate=cpu", f"report={report}"]
    assert run(*args, f"run_dir={tmp_path / 'a'}") == 0
    out = capsys.readouterr().out
    assert "A run beside its dry run" in out
    assert "optimizer states" in out
    assert run(*args, "band=0.01", f"run_dir={tmp_path / 'band'}") == 1
    assert "which is" in capsys.readouterr().out
    report.write_text(json.dumps({"ranks": [rank | {"allocated": 0}]}))
    assert run(*args, f"run_dir={tmp_path / 'b'}") == 2


def test_a_band_says_which_direction_is_dangerous_and_puts_it_first():
    from hp_memory.estimate.compare_run import PEAKS, Figure, outside

    found = [Figure(0, PEAKS[0], 100, 112), Figure(1, PEAKS[0], 100, 85), Figure(2, PEAKS[0], 100, 104)]
    found.append(Figure(0, "gradients", 0, 5))  # a term by itself has no band
    low, high = outside(found, 0.1)
    assert low.startswith("rank 1")
    assert "15.0% too little, which is dangerous" in low
    assert high.startswith("rank 0")
    assert "12.0% too much, which is safe" in high
    assert outside(found, 0.15) == []


def test_the_terms_of_a_run_must_be_terms_of_the_dry_run():
    from types import SimpleNamespace

    from hp_memory.estimate.compare_run import figures

    stage = SimpleNamespace(rank=0, static=(), worst=SimpleNamespace(nbytes=1), peak=1, fragmentation=0)
    rank = {"pipeline_rank": 0, "allocated": 1, "reserved": 1, "terms": {"weights": 1}}
    with pytest.raises(ConfigError, match="no such term"):
        figures(SimpleNamespace(stages=[stage]), [rank])
