"""Scripts and job files that people can read, keep and edit, from the templates in ``launch/``."""

from __future__ import annotations

import json
import re
import shlex
import stat
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hp_memory.errors import ConfigError
from hp_memory.launch import command
from hp_memory.launch.plan import LaunchPlan, NodePlan
from hp_memory.launch.secrets import is_secret

# Stand for what only the node's own shell knows; shlex leaves such words alone, so they become variables afterwards.
_RANK, _MASTER, _PORT = "@node_rank@", "@master_addr@", "@master_port@"
_SHELL = {_RANK: '"$NODE_RANK"', _MASTER: '"$MASTER_ADDR"', _PORT: '"$MASTER_PORT"'}
# A job that isn't started now can't choose a free port now: msrun's own default.
DEFAULT_PORT = 8118
NODE_SCRIPT = "node.sh"
JOBS = {"slurm": ("slurm.sbatch.j2", "job.sbatch"), "volcano": ("volcano.yaml.j2", "job.yaml")}


def template_dir() -> Path:
    """The folder of templates."""
    return Path(__file__).parents[2] / "_launch"


def render(plan: LaunchPlan) -> dict[str, str]:
    """File name -> text of what ``settings.action`` asks for: a script per node, or one for all and a job file."""
    action = plan.settings.action
    if action == "scripts":
        return {f"node_{node.rank}.sh": node_script(plan, node, node.rank) for node in plan.nodes}
    template, name = JOBS[action]
    return {NODE_SCRIPT: node_script(plan, plan.nodes[0], None), name: _job(plan, template)}


def write(plan: LaunchPlan, name: str, text: str) -> Path:
    """Writes one rendered file below ``<run_dir>/launch``; shell scripts become executable."""
    path = Path(plan.run_dir) / "launch" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ConfigError("run_dir", plan.run_dir, f"can't be written: {error.strerror}") from error
    if text.startswith("#!"):
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP)
    return path


def node_script(plan: LaunchPlan, node: NodePlan, node_rank: int | None) -> str:
    """What one node runs; with ``node_rank`` None its rank and the first node's address come from the environment."""
    return _fill(
        "node.sh.j2", plan, title="Every node" if node_rank is None else f"Node {node_rank} ({node.host})",
        node_rank=node_rank, master_addr=shlex.quote(plan.master_addr), cwd=shlex.quote(plan.cwd),
        master_port=plan.settings.master_port or DEFAULT_PORT, bin=shlex.quote(str(Path(plan.python).parent)),
        env={name: _value(name, value) for name, value in _environment(node).items()}, command=_command(plan, node),
    )  # fmt: skip


def _command(plan: LaunchPlan, node: NodePlan) -> str:
    if plan.settings.launcher == "process":
        return shlex.join(node.argv)
    logs = command.log_dir(plan.run_dir, _RANK)
    argv = command.msrun_argv(
        plan.settings, plan.task, world=plan.world_size, local=len(node.ranks), node_rank=_RANK, master_addr=_MASTER,
        master_port=_PORT, log_dir=logs,
    )  # fmt: skip
    return " ".join(map(_shell_word, argv))


def _environment(node: NodePlan) -> dict[str, str]:
    """The node's variables, those that tell nodes apart left to the shell."""
    logs = node.env["ASCEND_PROCESS_LOG_PATH"].replace(f"/node_{node.rank}/", f"/node_{_RANK}/")
    return node.env | {"HP_MEMORY_NODE": _RANK, "ASCEND_PROCESS_LOG_PATH": logs}


def _value(name: str, value: str) -> str:
    """What a script sets a variable to; a private one has to be in the shell that starts it."""
    return (
        f'"${{{name}:?must be set here: its value is private and not written into scripts}}"'
        if is_secret(name)
        else _shell_word(value)
    )


def _shell_word(word: str) -> str:
    quoted = shlex.quote(word)
    for mark, variable in _SHELL.items():
        # Inside single quotes nothing expands: close them around the variable.
        quoted = quoted.replace(mark, f"'{variable}'" if quoted.startswith("'") else variable)
    return quoted


def _job(plan: LaunchPlan, template: str) -> str:
    volcano = plan.settings.volcano
    workers = len(plan.nodes[0].ranks)
    resources: dict[str, int | str] = {volcano.device_resource: workers} if volcano.device_resource else {}
    if volcano.memory:
        resources["memory"] = json.dumps(volcano.memory)
    script = str(Path(plan.run_dir) / "launch" / NODE_SCRIPT)
    name = re.sub(r"[^a-z0-9]+", "-", Path(plan.run_dir).name.lower()).strip("-") or "run"
    quote = json.dumps if template.endswith(".yaml.j2") else shlex.quote
    mount = json.dumps(str(Path(plan.run_dir).parent))
    log = f"{plan.run_dir}/launch/slurm-".replace("%", "%%") + "%j.log"
    return _fill(
        template,
        plan,
        name=f"hp-{name[:40]}",
        log=json.dumps(log),
        dump=json.dumps,
        node_script=quote(script),
        resources=resources,
        mount_path=mount,
    )


def _fill(template: str, plan: LaunchPlan, **values: object) -> str:
    engine = Environment(
        loader=FileSystemLoader(template_dir()), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    return engine.get_template(template).render(plan=plan, settings=plan.settings, **values)
