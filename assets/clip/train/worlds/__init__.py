"""What the in-domain CLIPs learn from: one file for each group of worlds, and the table of models made of them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rewards.vision.training.lexicon import QUALITIES, THINGS, Lexicon, phrases
from rewards.vision.training.model import Tower


@dataclass(frozen=True)
class Model:
    """One shipped model."""

    # Where it lies.
    folder: str
    # The files of this folder that it learns, and these worlds in a sentence.
    worlds: tuple[str, ...]
    taught: str
    tower: Tower
    # Words of other topics that mean something in its worlds.
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
        Tower(size=64, width=12, mean=0.9, std=0.25),
    ),
    "lodestar-96": Model(
        "rewards/vision/weights/lodestar-96",
        ("acrobot", "minigrid", "highway", "racing", "mujoco"),
        "Acrobot, MiniGrid, highway-env, CarRacing and poses of MuJoCo robots",
        Tower(size=96, width=16, mean=0.4, std=0.3),
        clash=phrases(
            "robot, person, woman, soldier, cat, dog, horse, elephant, train, "
            "green, golden, kneeling, running, dancing, broken"
        ),
    ),
}


def merge(
    parts: Sequence[Lexicon], things: tuple[str, ...] = THINGS, qualities: tuple[str, ...] = QUALITIES
) -> Lexicon:
    """One lexicon of several; their names must not clash."""

    def table(name: str) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        for part in parts:
            clash = whole.keys() & getattr(part, name).keys()
            if clash:
                raise ValueError(f"{name} of two lexicons share the names {sorted(clash)}; rename those of one")
            whole |= getattr(part, name)
        return whole

    def chain(name: str) -> tuple[Any, ...]:
        return tuple(item for part in parts for item in getattr(part, name))

    return Lexicon(
        chain("worlds"),
        table("attributes"),
        chain("opposites"),
        table("subjects"),
        table("baselines"),
        chain("pairs"),
        table("pairs_held_out"),
        chain("verbatim"),
        things,
        qualities,
    )
