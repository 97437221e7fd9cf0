"""Values that would act in a shell, a batch file, YAML, ssh or a terminal are refused by name or stay what they are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from hp_memory.errors import ConfigError
from hp_memory.launch import checks, failure
from hp_memory.launch.checks import Check
from hp_memory.launch.hosts import parse_host, read_hostfile
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.script import render
from hp_memory.launch.settings import LaunchSettings, SlurmSettings, VolcanoSettings

BAD_HOSTS = [
    "-oProxyCommand=x", "\ufeff127.0.0.1", ":2", "", " ", "a..b", "a b c", "h slots=\u0661", "h slots=\u00b2",
    f"h slots={'9' * 5000}", "a" * 300, "[/x]", "a;b", "$(x)", "m\u00fcnchen",
]  # fmt: skip
BAD_NAMES = ["A;touch x;B", "A$(touch x)", "my.var", "my-var", "1A", "", "\u00c4", "A\nB"]


def plan(run_dir: Path, **settings):
    return plan_launch(LaunchSettings(**settings), ("x",), run_dir, {})


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_host_that_is_no_name_is_refused(host):
    with pytest.raises(ConfigError, match=r"^launch\.nodes"):
        parse_host(host, "launch.nodes[0]")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", "h\u00f6st".encode("latin-1"), b"\x00" * 9])
def test_a_hostfile_that_is_no_text_is_refused(tmp_path, content):
    (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^launch\.hostfile"):
        read_hostfile(str(tmp_path / "hosts"), "launch.hostfile")
    with pytest.raises(ConfigError, match="can't read it"):
        read_hostfile("/dev/zero", "launch.hostfile")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_none_in_a_shell_is_refused(tmp_path, name):
    with pytest.raises(ConfigError):
        plan_launch(LaunchSettings(env={name: "1"}), ("x",), tmp_path, {})
    inherited = {f"HCCL_{name}": "1", "HCCL_BUFFSIZE": "1"}
    env = plan_launch(LaunchSettings(), ("x",), tmp_path, inherited).nodes[0].env
    assert [known for known in env if known.startswith("HCCL_")] in (["HCCL_BUFFSIZE"], ["HCCL_1A", "HCCL_BUFFSIZE"])


@pytest.mark.parametrize(
    "settings",
    [
        {"slurm": SlurmSettings(time="1\ntouch x")},
        {"slurm": SlurmSettings(options=["--x\ntouch x"])},
        {"slurm": SlurmSettings(account="a\rb")},
        {"volcano": VolcanoSettings(image="a\nsecurityContext: {privileged: true}")},
        {"master_addr": "a\x1b[2J"},
        {"env": {"A": "1\n2"}},
        {"task": ["a", "b\x00"]},
    ],
)
def test_a_control_character_is_refused_wherever_it_stands(tmp_path, settings):
    with pytest.raises(ConfigError, match="control character"):
        plan(tmp_path, **settings)
    with pytest.raises(ConfigError, match="run_dir="):
        plan(tmp_path / "a\ntouch x")


@pytest.mark.parametrize("text", ["a: b", "123", "on", "null", "no", "reg/img #x", "true", "a'b\"c", "{x}"])
def test_every_text_in_the_volcano_job_is_that_text(tmp_path, text):
    volcano = VolcanoSettings(image=text, namespace=text, queue=text, run_claim=text)
    run_dir = tmp_path / ("r" * 200)
    files = render.render(plan(run_dir, action="volcano", volcano=volcano, num_nodes=2))
    job = yaml.safe_load(files["job.yaml"])
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    assert job["metadata"]["namespace"] == job["spec"]["queue"] == pod["containers"][0]["image"] == text
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == text
    assert len(job["metadata"]["generateName"]) < 58


def test_a_batch_file_quotes_its_log_and_no_script_has_a_private_value(tmp_path):
    made = plan(tmp_path / "with space" / "p%u", action="slurm", num_nodes=2, env={"HF_TOKEN": "hf_abcdef"})
    files = render.render(made)
    assert f'#SBATCH --output="{tmp_path}/with space/p%%u/launch/slurm-%j.log"' in files["job.sbatch"]
    assert "hf_abcdef" not in "".join(files.values())
    assert 'export HF_TOKEN="${HF_TOKEN:?' in files["node.sh"]


def test_text_of_others_is_neither_markup_nor_an_escape_sequence():
    console = Console(file=io.StringIO(), width=200)
    console.print(checks.table([Check("reachable", "bad", "[/x] [abc]")]))
    assert "[/x] [abc]" in console.file.getvalue()
    assert failure.tail("a\x1b]0;title\x07b\n\x1b[2J\x1b[32mall ranks ended well\n") == ("ab", "all ranks ended well")
