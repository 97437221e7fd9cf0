"""The command line refuses what its config can't mean: exit code 2, one or two lines, no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hp_memory.cli import COMMANDS, main


def run(capsys, *argv):
    with pytest.raises(SystemExit) as end:
        main(argv)
    out, err = capsys.readouterr()
    return end.value.code, out, err


def test_usage_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("trian",), "did you mean 'train'"),
        (("train", "recipe=tiny_mo"), "did you mean 'tiny_moe'"),
        (("train", "layout=chain_exlude"), "did you mean 'chain_exclude'"),
        (("train", "layout.nme=x"), "did you mean 'layout.name'"),
        (("train", "+foo=1"), "foo='1': no such key"),
        (("train", "+layout.foo=1"), "no such key"),
        (("train", "model.top_k=many"), "model.top_k"),
        (("train", "layout.save=[gmm"), "override"),
        (("train", "layout"), "key=value"),
        (("train", "layout.save=[gmm,al2all]"), "did you mean 'all2all'"),
        (("train", "layout.layers=[{layers: 99}]"), "layers 0-"),
        (("train", "layout.layers=[{layers: ''}]"), "not a layer selector"),
        (("train", "layout=none", "layout.recompute=[router]"), "always saved"),
        (("train", "layout.save=[gmm,gmm.up]"), "a second time"),
        (("train", "recipe=tiny_moe", "parallel.expert=3"), "parallel.expert=3"),
        (("train", "recipe=tiny_moe", "model.num_experts=7"), "experts"),
        (("train", "recipe=tiny_moe", "launch.workers_per_node=3"), "starts 3 workers"),
        (("train", "data.text=missing.txt"), "no such file"),
        (("train", "run_root=/proc/hp"), "run_root='/proc/hp'"),
        (("train", "recipe=tiny_moe", "train.resume_from=nowhere"), "no complete checkpoint"),
        (("train", "recipe=tiny_moe", "pipeline=1f1b"), "`hp-memory pipeline`"),
        (("train", "recipe=tiny_moe", "offload.auto_offload=activation"), "compiled graphs"),
        (("train", "recipe=tiny_deepseek_v3", "engine=reference"), "deepseek_v3"),
        (("compare", "recipe=tiny_deepseek_v3"), "reference model"),
        (("train", "recipe=tiny_moe", "train.learning_rate=nan"), "finite"),
        (("train", "recipe=tiny_moe", "seed=-1"), "seed"),
        (("train", "recipe=tiny_moe", "name=../x"), "folder"),
        (("train", "recipe=tiny_moe", "layout=null"), "layout='null': must be the name"),
        (("train", "recipe=tiny_moe", "name=${nothing}"), "nothing"),
        (("train", "recipe=tiny_moe", "launch.task=[other.py]"), "hp-memory launch"),
        (("train", "recipe=tiny_moe", "+launch.env.MS_ROLE=MS_WORKER"), "launch.env.MS_ROLE"),
        (("train", "recipe=tiny_moe", "data.tokenizer=/dev/null"), "tokenizer"),
        (("train", "recipe=tiny_deepseek_v3", "offload=peak", "launch.dry_run=true"), "offload.auto_offload"),
        (("export", "recipe=deepseek_v3_671b", "to=mindformers-callback", "model.top_k=999"), "model.top_k"),
        (("export", "recipe=deepseek_v3_671b", "to=mindformers-2.0", "layout=full", "output=/nope/x"), "output"),
        (("compare", "layouts=[none,../x]"), "layouts[1]"),
        (("doctor", "launch.workers_per_node=-1"), "workers_per_node"),
        (("train", "engine=torch"), "reference, mindformers"),
        (("compare", "layouts=[none]"), "two or more"),
        (("compare", "layouts=[none,fulll]"), "did you mean 'full'"),
        (("train", "-m", "layout=none,fulll"), "did you mean 'full'"),
        (("train", "~launch"), "no setting can be left out"),
        (("train", "~layout"), "no setting can be left out"),
        (("train", "~layout.save"), "layout.save=..."),
        (("train", "~launch.env.X"), "does not exist"),
        (("train", "+layout=none"), "without the plus"),
        (("train", "layout=none,full"), "add -m"),
        (("train", "recipe=tiny_moe", "word"), "override='word': an override is written key=value"),
        (("train", "name=läuf"), "quoted twice"),
        (("train", "train=null"), "train='null': must be the name of an option"),
        (("train", "--cfg", "jobb"), "invalid choice: 'jobb'"),
        (("train", "--config-dir", "/nope"), "--config-dir='/nope'"),
        (("train", "--experimental-rerun", "job.pickle"), "can run anything"),
        (("train", "hydra.run.dir=/tmp/elsewhere"), "Hydra's own settings are fixed"),
        (("train", "+hydra.searchpath=[file:///tmp]"), "Hydra's own settings are fixed"),
        (("train", "hydra/launcher=basic"), "Hydra's own settings are fixed"),
        (("train", "layout.layers=[{layers:'0',sav:[gmm]}]"), "layout.layers[0].sav=['gmm']: no such key"),
        (("train", "layout.layers=[{layers:'0',sav:[gmm]}]"), "did you mean 'layout.layers[0].save'"),
        (("train", "layout.layers=[{layers:'0',save:gmm}]"), "layout.layers[0].save='gmm': must be a list"),
        (("train", "layout.layers=[5]"), "layout.layers[0]=5: must be a mapping"),
        (("train", "layout.layers={save:[gmm]}"), "layout.layers='{save:[gmm]}': must be a list"),
        (("train", "layout.save=[null]"), "layout.save[0]=None: must have a value"),
        (("train", "pipeline.layouts=[{stages:'0',sav:[]}]"), "did you mean 'pipeline.layouts[0].save'"),
        (("train", "parallel=3"), "parallel=3: must be a mapping"),
        (("train", "model.num_layers=1.5"), "model.num_layers=1.5: must be a whole number"),
        (("train", "model.num_layers=null"), "model.num_layers=None: must have a value"),
        (("train", "train.save_last=maybe"), "train.save_last='maybe': must be true or false"),
        (("train", "launch.env.X=null"), "launch.env.X=None: must have a value"),
        (("train", "launch.env={X:{Y:1}}"), "launch.env.X={'Y': 1}: must be one value"),
        (("train", "recipe=tiny_moe", "run_dir="), "run_dir='': is empty"),
        (("train", "-m", "run_root=/proc/hp", "layout=none,full", "launch.dry_run=true"), "run_root='/proc/hp'"),
        (("train", "recipe=tiny_moe", "parallel.pipeline=2", "launch.workers_per_node=4"), "`hp-memory pipeline`"),
        (("compare", "recipe=tiny_moe", "layout=full"), "layouts=[none,full]"),
        (("compare", "recipe=tiny_moe", "layout.save=[gmm]"), "layouts=[none,full]"),
        (("pipeline", "recipe=pp_regression/quick", "layout=full"), "matrix.layout=[full]"),
        (("pipeline", "show=true", "pipeline=zb_h1", "layout=full"), "without layout"),
        (("doctor", "layout=full"), "this machine only"),
        (("train", "=1"), "written key=value"),
        (("train", "recipe=tiny_moe", "model.num_layers=1000000000"), "model.num_layers=1000000000: must be at most"),
        (("train", "recipe=tiny_moe", "seed=99999999999"), "seed=99999999999: must be at most"),
        (("train", "recipe=tiny_moe", "layout.name="), "layout.name=''"),
        (("train", "recipe=tiny_moe", "data.text="), "data.text=''"),
        (("compare", "recipe=tiny_moe", "launch.task=[x.py]"), "hp-memory launch"),
        (("pipeline", "recipe=pp_regression/quick", "launch.task=[x.py]"), "hp-memory launch"),
        (("pipeline", "recipe=pp_regression/quick", "matrix.aux_loss=[nan]"), "matrix.aux_loss[0]=nan"),
        (("pipeline", "recipe=pp_regression/quick", "matrix.stages=[3,3]"), "twice"),
        (("pipeline", "recipe=pp_regression/quick", "matrix.stages=[100000]"), "between 2 and 256"),
        (("pipeline", "recipe=pp_regression/quick", "matrix.seed=-1"), "matrix.seed=-1"),
        (("pipeline", "show=true", "pipeline=zb_h1", "pipeline.microbatches=100000000"), "no schedule is laid out"),
        (("pipeline", "show=true", "pipeline=zb_h1", "pipeline.layers_per_stage=[1,2]"), "has no effect here"),
        (("pipeline", "show=true", "pipeline=zb_h1", "picture=/nope/x.png"), "there is no folder /nope"),
    ],
)
def test_bad_input_is_refused_in_two_lines(capsys, argv, says):
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) <= 2
    assert "Traceback" not in out + err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_helps_in_a_process_of_its_own(command):
    """The schemas must be known before Hydra composes what it shows."""
    words = [sys.executable, "-c", "from hp_memory.cli import main; main()", command, "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "layout" in done.stdout


def test_an_entry_of_a_dictionary_needs_no_plus(capsys):
    code, out, _ = run(capsys, "train", "recipe=tiny_moe", "launch.env.ANSWER=42", "launch.dry_run=true")
    assert code == 0
    assert "ANSWER=42" in out


def test_a_refused_sweep_runs_none_of_its_jobs(capsys):
    _, out, _ = run(capsys, "train", "-m", "layout=none,fulll", "launch.dry_run=true")
    assert "worker" not in out


def test_the_config_is_shown_without_running(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "train", "recipe=tiny_moe", "--cfg", "job", "--resolve")
    assert code == 0
    assert "name: chain_exclude" in out
    assert not list(tmp_path.iterdir())


def test_a_sweep_of_launches_shows_each_command_and_starts_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "train", "recipe=tiny_moe", "-m", "layout=none,full", "launch.dry_run=true")
    assert code == 0
    assert out.count("hp_memory.train.worker") == 2
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_signal_ends_a_sweep(monkeypatch, tmp_path):
    from hp_memory.commands import train

    ran = []
    monkeypatch.setattr(train, "run", lambda cfg: ran.append(cfg.train.steps) or 143)
    with pytest.raises(SystemExit) as ended:
        main(["train", "-m", "train.steps=3,4,5", f"run_root={tmp_path}"])
    assert ended.value.code == 143
    assert ran == [3]
