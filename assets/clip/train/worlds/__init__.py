"""What the in-domain CLIPs learn from: one file for each group of worlds, and the table of models made of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from assets.clip.train.worlds.lexicon import Lexicon, merge
from assets.clip.train.worlds.templates import QUALITIES, THINGS, phrases


@dataclass(frozen=True)
class Model:
    """One shipped model.

    Attributes:
        folder: where it lies.
        worlds: the files of this folder that it learns.
        taught: those worlds in a sentence.
        size: side of its frames, pixels.
        width: of its image tower.
        mean: subtracted from pixels in [0, 1].
        std: divides them.
        clash: words of other topics that mean something in its worlds.
    """

    folder: str
    worlds: tuple[str, ...]
    taught: str
    size: int
    width: int
    mean: float
    std: float
    clash: tuple[str, ...] = ()

    def lexicon(self) -> Lexicon:
        """Its worlds and words."""
        parts = [importlib.import_module(f"assets.clip.train.worlds.{name}").LEXICON for name in self.worlds]
        kept = [tuple(text for text in group if text not in self.clash) for group in (THINGS, QUALITIES)]
        return merge(parts, *kept)


MODELS = {
    "lodestar": Model(
        "rewards/vision/weights/lodestar",
        ("classic",),
        "CartPole, MountainCar and Pendulum",
        size=64,
        width=12,
        mean=0.9,
        std=0.25,
    ),
    "lodestar-96": Model(
        "rewards/vision/weights/lodestar-96",
        ("acrobot", "minigrid", "highway", "racing", "mujoco"),
        "Acrobot, MiniGrid, highway-env, CarRacing and poses of MuJoCo robots",
        size=96,
        width=16,
        mean=0.4,
        std=0.3,
        clash=phrases(
            "robot, person, woman, soldier, cat, dog, horse, elephant, train, "
            "green, golden, kneeling, running, dancing, broken"
        ),
    ),
}
