"""The log of a run at Weights & Biases, beside metrics.csv: `logger=[tensorboard,wandb]`.

W&B's own environment variables say where to: WANDB_PROJECT (lodestar), WANDB_ENTITY, WANDB_MODE=offline. A run that
is continued goes on in the same run there.
"""

import os
import secrets
from pathlib import Path

import wandb
from stable_baselines3.common.logger import KVWriter

from lodestar.files import read_text
from runners.run.checkpoint import write_atomically
from runners.run.config import TrainConfig, to_dict
from runners.run.progress import ExcludedFormats, LoggedValues, scalars


class WandbLog(KVWriter):
    """A row a dump, with the tags of metrics.csv."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        id_file = folder / "wandb_id.txt"
        # A run that is continued has its id already.
        if not id_file.is_file():
            write_atomically(id_file, secrets.token_hex(8))
        try:
            self.run = wandb.init(
                dir=str(folder),
                id=read_text(id_file),
                name="/".join(folder.resolve().parts[-3:]),
                project=os.environ.get("WANDB_PROJECT", "lodestar"),
                config=to_dict(config),
                resume="allow",
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            raise OSError(f"{error}; WANDB_MODE=offline needs neither key nor network") from error

    def write(self, key_values: LoggedValues, key_excluded: ExcludedFormats, step: int = 0) -> None:
        try:
            self.run.log(scalars(key_values), step=step)
        except wandb.Error as error:
            raise OSError(str(error)) from error

    def add_video(self, path: Path, step: int) -> None:
        """Send a video that was written."""
        try:
            self.run.log({"video": wandb.Video(str(path), format=path.suffix[1:])}, step=step)
        except (wandb.Error, ValueError) as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        self.run.finish()
