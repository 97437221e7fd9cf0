"""Every MindFormers recipe, exported."""

from __future__ import annotations

from hp_memory.commands import export
from hp_memory.config import app as hydra_app
from hp_memory.config import schema as config
from hp_memory.errors import ConfigError

RECIPES = (
    "deepseek_v3_671b",
    "qwen3_235b_a22b",
    "qwen3_30b_a3b",
    "glm_4_5",
    "tiny_deepseek_v3",
    "tiny_deepseek_v3_mtp",
    "tiny_qwen3_moe",
)


def exported(recipe: str, target: str, *overrides: str) -> str:
    """The YAML, or ``error:`` and the message where the target can't say the plan."""
    cfg = hydra_app.to_object(hydra_app.compose("export", [f"recipe={recipe}", f"to={target}", *overrides]))
    config.validate(cfg)
    try:
        return export.render(cfg)
    except ConfigError as error:
        return f"error: {error}"
