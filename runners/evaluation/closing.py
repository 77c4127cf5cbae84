"""What a run's logs are told when it has been evaluated: its closing scores and its videos.

metrics.csv holds what happened while it trained, and result.json the scores; TensorBoard and W&B get both.
"""

import re
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import Logger

from runners.run.folder import OTHER_WAY, mean_costs
from runners.run.progress import Guarded

# A policy's entry in result.json and a number of it -> the number's tag in the logs.
CLOSING_TAGS = {
    ("this run", "task_return"): "final/return",
    ("this run", "success"): "final/success",
    ("this run", "length"): "final/length",
    ("this run", "goal_steps"): "final/goal_steps",
    (OTHER_WAY, "task_return"): "final/mode_return",
    ("random", "task_return"): "final/random_return",
}


def write_scores(logger: Logger, scores: dict[str, dict[str, Any]], step: int) -> None:
    """Give the numbers of result.json to TensorBoard and W&B, where the run has them and was evaluated."""
    values = {}
    for (policy, key), tag in CLOSING_TAGS.items():
        value = scores.get(policy, {}).get(key)
        if value is not None:
            values[tag] = float(value)
    this_run = scores.get("this run", {})
    for name, cost in mean_costs(this_run).items():
        values[f"final/{name}_cost"] = cost
    for name, value in (this_run.get("metrics") or {}).items():
        # `BALROG progression, %` is `balrog_progression`.
        tag = re.sub(r"\W+", "_", name.lower()).strip("_")
        values[f"final/{tag}"] = float(value)
    if not values:
        return
    for log in logger.output_formats:
        # metrics.csv holds only what happened while the run trained.
        if isinstance(log, Guarded) and log.name != "metrics.csv":
            log.write(values, dict.fromkeys(values, ()), step)


def write_video(logger: Logger, path: Path, step: int) -> None:
    """Give a video to W&B, where the run has it; TensorBoard is shown the episode itself, see `tensorboard.shows`."""
    for log in logger.output_formats:
        if isinstance(log, Guarded) and log.name == "wandb":
            log.call_writer(lambda writer: writer.add_video(path, step))
