from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from hp_memory.launch.plan import plan_launch
from hp_memory.launch.script import render
from hp_memory.launch.settings import LaunchSettings, SlurmSettings, VolcanoSettings

TASK = ("python", "-m", "package.worker", "--text", "it's $HOME; two words")
CLUSTER = {"num_nodes": 4, "workers_per_node": 8}
SETTINGS = {
    "scripts": LaunchSettings(action="scripts", nodes=["10.9.0.1", "10.9.0.2"], workers_per_node=8),
    "slurm": LaunchSettings(action="slurm", slurm=SlurmSettings(partition="npu", options=["--mem=0"]), **CLUSTER),
    "volcano": LaunchSettings(
        action="volcano", volcano=VolcanoSettings(image="image:1", memory="512Gi", run_claim="runs"), **CLUSTER
    ),
}


def rendered(action: str, run_dir: str = "/runs/a b") -> dict[str, str]:
    return render.render(plan_launch(SETTINGS[action], TASK, Path(run_dir), {"HCCL_BUFFSIZE": "200"}))


@pytest.mark.parametrize("action", SETTINGS)
def test_shell_scripts_are_valid(action):
    scripts = [text for text in rendered(action).values() if text.startswith("#!")]
    assert scripts
    for text in scripts:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_script_per_node_knows_its_place():
    files = rendered("scripts")
    assert list(files) == ["node_0.sh", "node_1.sh"]
    assert "NODE_RANK=1\nMASTER_ADDR=10.9.0.1\n" in files["node_1.sh"]


def msrun_words(script: str, tmp_path: Path, **env: str) -> list[str]:
    """What msrun would get: the script is run with an msrun that prints its arguments."""
    for name, body in (("msrun", 'printf "%s\\n" "$@"'), ("python", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    lines = [
        f"export PATH={tmp_path}:$PATH" if line.startswith("export PATH=") else line for line in script.splitlines()
    ]
    env = {"PATH": "/usr/bin:/bin", **env}
    done = subprocess.run(["bash"], input="\n".join(lines), env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_scheduled_script_takes_rank_and_master_from_its_environment(tmp_path):
    words = msrun_words(rendered("slurm")["node.sh"], tmp_path, NODE_RANK="3", MASTER_ADDR="node-7")
    assert {"--worker_num=32", "--local_worker_num=8", "--node_rank=3", "--master_addr=node-7"} <= set(words)
    assert "--log_dir=/runs/a b/logs/node_3" in words
    assert tuple(words[-len(TASK) :]) == TASK, "every argument arrives as it was"


def test_scheduled_script_without_a_rank_says_so(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as error:
        msrun_words(rendered("slurm")["node.sh"], tmp_path)
    assert "the place of this node" in error.value.stderr


def test_slurm_file_asks_for_one_task_a_node():
    text = rendered("slurm")["job.sbatch"]
    for line in ("--nodes=4", "--ntasks-per-node=1", "--partition=npu", "--mem=0"):
        assert f"#SBATCH {line}\n" in text


def test_slurm_file_starts_the_node_script_with_slurms_numbers(tmp_path):
    (tmp_path / "launch").mkdir()
    files = rendered("slurm", str(tmp_path))
    (tmp_path / "launch" / "node.sh").write_text('echo "rank $NODE_RANK master $MASTER_ADDR"\n')
    commands = {
        "scontrol": "echo node-4; echo node-5",
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; SLURM_NODEID=1 exec "$@"',
    }
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node-[4-5]"}
    done = subprocess.run(["bash"], input=files["job.sbatch"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "rank 1 master node-4\n"


def test_volcano_job_is_yaml_with_what_was_asked_for():
    job = yaml.safe_load(rendered("volcano")["job.yaml"])
    assert (job["kind"], job["spec"]["minAvailable"]) == ("Job", 4)
    (task,) = job["spec"]["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    assert container["image"] == "image:1"
    assert container["resources"]["limits"] == {"huawei.com/Ascend910": 8, "memory": "512Gi"}
    assert task["template"]["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert container["volumeMounts"][0]["mountPath"] == "/runs"


def test_volcano_container_starts_the_node_script_with_volcanos_numbers(tmp_path):
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "node.sh").write_text('echo "rank $NODE_RANK master $MASTER_ADDR"\n')
    job = yaml.safe_load(rendered("volcano", str(tmp_path))["job.yaml"])
    words = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    env = {"PATH": "/usr/bin:/bin", "VC_TASK_INDEX": "2", "VC_NODE_HOSTS": "job-node-0.job,job-node-1.job"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "rank 2 master job-node-0.job\n"


def test_scripts_are_executable(tmp_path):
    plan = plan_launch(SETTINGS["slurm"], TASK, tmp_path, {})
    assert render.write(plan, "node.sh", "#!/bin/sh\n").stat().st_mode & 0o100
