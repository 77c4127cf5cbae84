"""The keys of `runners.clip`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lodestar.settings import Settings, setting
from rewards.vision.load import PHRASES_FILE
from runners.cli.compose import environment
from runners.run.config import UsageError


@dataclass
class ClipTraining(Settings):
    """One model."""

    env: str = setting(help="an environment that draws itself, as in env=my_file:World-v0")
    captions: str = setting(
        "", "my_file:caption, a function of your environment, or my_file:GOALS; the environment's declared ones"
    )
    out: str = setting("", "folder of the model; clips/<env>")
    policy: str = setting("", "my_file:script or a run's folder, which acts in every other episode")
    synonyms: str = setting("", "my_file:SYNONYMS, a dict from words to lists of others; a short list of common words")
    frames: int = setting(3000, "states that are drawn and learnt from", "[200, 100000]")
    steps: int = setting(500, "optimiser steps of the image tower", ">= 1")
    text_steps: int = setting(400, "optimiser steps of the text tower", ">= 1")
    size: int = setting(64, "side of a frame, pixels; small things need 96", choices=(64, 96))
    recolour: bool = setting(False, "whether frames are recoloured in training; not where sentences name colours")
    seed: int = setting(0, "of the states, the sentences and the weights", ">= 0")
    env_options: dict[str, Any] = setting({}, "options of the environment, as in env.size=8")

    def __post_init__(self) -> None:
        super().__post_init__()
        environment(self.env)
        self.out = self.out or f"clips/{self.env.replace(':', '-').replace('/', '-')}"
        folder = Path(self.out)
        if folder.exists() and not (folder / PHRASES_FILE).is_file() and any(folder.iterdir()):
            raise UsageError(f"out={self.out} holds other files; give a new folder")
