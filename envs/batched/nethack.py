"""NetHack, N games in one process: each writes into rows of shared arrays, which are encoded for all games at once.

Episodes are exactly those of `envs.make.make`: game number i is seeded with `seed + i`, its later games follow from it.

Differences from other array programs: `seed` may be a list of N seeds; a snapshot holds the seeds and the actions of
the running games, so `restore` replays them.
Fails when: N is large. Each game has a copy of the program, 3 MB; they share one core.
"""

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from nle.env.tasks import NetHackScore

from envs.batched.base import BatchedEnv
from envs.nethack.family import caption, draw_game, with_status
from envs.nethack.tasks import STANDING, answer, score, settle
from envs.nethack.view import Games
from envs.types import Array


class BatchedNetHack(BatchedEnv):
    """See `BatchedEnv`; the games hold their own state. A ValueError refuses arrays of torch."""

    _inners: Sequence[Any] = ()

    def _setup(self, original: gym.Env) -> None:
        if self.arrays.is_torch:
            raise ValueError('array="torch" is not there for NetHack, whose games are on the CPU; leave array out')
        n, seed = self.num_envs, self.first_seed
        kwargs = dict(self.world.spec.kwargs) | {"observation_keys": ("glyphs", "blstats", "message")}
        self._inners = [type(self.world)(**kwargs) for _ in range(n)]
        for inner, rng in zip(self._inners, _generators(range(seed, seed + n))):
            inner.np_random, inner.savedir = rng, None
        self._games = Games(self._inners)
        self._view = original.get_wrapper_attr("view")
        self._status = original.get_wrapper_attr("status")
        self._ours = not isinstance(self.world, NetHackScore)
        self._step_game = [game.step for game in self._games.playing]
        self._keys = np.array([int(action) for action in self.world.actions])
        self._origins: list[dict[str, Any]] = [{} for _ in range(n)]  # the random streams before the running games
        self._played = np.zeros((n, 256), np.int16)  # their actions
        self._won = np.zeros(n, bool)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """As `BatchedEnv.reset`; game i is seeded with `seed + i`, or with number i of a list."""
        if seed is not None:
            seeds = list(range(seed, seed + self.num_envs)) if isinstance(seed, int | np.integer) else list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(f"{len(seeds)} seeds do not fit {self.num_envs} games; give as many, or one number")
            mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
            for inner, rng, meant in zip(self._inners, _generators(seeds), mask):
                inner.np_random = rng if meant else inner.np_random
        return super().reset(options=options)

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        last = int(self._steps.max())
        if last > self._played.shape[1]:
            self._played = np.concatenate([self._played, np.zeros_like(self._played)], 1)
        self._played[self._everywhere, self._steps - 1] = actions
        games, keys = self._games, self._keys[actions].tolist()
        before = games.blstats[:, STANDING]
        for step, key in zip(self._step_game, keys):
            step(key)
        for row in np.flatnonzero(games.internal[:, 1:4].any(1)).tolist():
            self._settle(row, keys[row])
        if self._ours:
            rewards, self._won = self.world.judge(games, before)
        else:
            rewards = score(games, before, self.world.penalty_step)
        return rewards, games.over() | self._won

    def _settle(self, row: int, key: int) -> None:
        if self._ours:
            answer(self._games, row, key)
        else:
            settle(self._games, row)

    def _observe(self, state: dict[str, Array], out: Array) -> None:
        self._view.write(self._games, self._everywhere, out)

    def _show(self, rows: Array) -> None:
        text, games = self.modalities["text"], self._games
        spoke = games.message[rows, 0] != 0
        text[rows] = ""
        for row in rows[spoke].tolist():
            text[row] = caption(games.text_of(row))
        if self._status:
            for row in rows.tolist():
                text[row] = with_status(text[row], games.blstats[row])

    def _success(self, terminated: Array) -> Array | None:
        return None if self.spec is not None and self.spec.name == "NetHackScore" else self._won  # it has no finish

    def _start(self, rows: Array, out: Array) -> None:
        for row in rows.tolist():
            inner = self._inners[row]
            self._origins[row] = copy.deepcopy(inner.np_random.bit_generator.state)
            draw_game(inner)
            inner.reset()
        self.state = {"blstats": self._games.blstats}
        self._view.write(self._games, rows, out)

    def _saved(self) -> dict[str, Any]:
        return {"origins": copy.deepcopy(self._origins), "actions": self._played[:, : int(self._steps.max())].copy()}

    def _return_to(self, saved: dict[str, Any]) -> None:
        for inner, origin in zip(self._inners, saved["origins"]):
            inner.np_random.bit_generator.state = copy.deepcopy(origin)
        self._begin(self._everywhere)
        played = np.asarray(saved["actions"], np.int16)
        games = self._games
        for row, count in enumerate(np.asarray(saved["steps"]).tolist()):
            for key in self._keys[played[row, :count]].tolist():
                self._step_game[row](key)
                if games.internal[row, 1:4].any():
                    self._settle(row, key)
        room = max(256, played.shape[1])
        self._played = np.zeros((self.num_envs, room), np.int16)
        self._played[:, : played.shape[1]] = played

    def close_extras(self, **kwargs: Any) -> None:
        for inner in self._inners:
            inner.close()


def _generators(seeds: Sequence[int]) -> list[np.random.Generator]:
    return [seeding.np_random(int(seed))[0] for seed in seeds]
