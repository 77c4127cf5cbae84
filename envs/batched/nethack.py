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

from envs.batched.base import BatchedEnv, Outcome, State
from envs.nethack.family import caption, draw_game, with_status
from envs.nethack.tasks import STANDING, answer, score, settle
from envs.nethack.view import Games
from envs.types import Array, EnvReset, Options, StateDict

# The actions of so many steps are kept at first; the room doubles when it is used up.
MIN_KEPT_STEPS = 256


class BatchedNetHack(BatchedEnv):
    """See `BatchedEnv`; the games hold their own state. A ValueError refuses arrays of torch."""

    _inners: Sequence[Any] = ()

    def _setup(self, original: gym.Env) -> None:
        if self.arrays.is_torch:
            raise ValueError('array="torch" is not there for NetHack, whose games are on the CPU; leave array out')
        n = self.num_envs
        seeds = range(self.first_seed, self.first_seed + n)
        kwargs = dict(self.world.spec.kwargs)
        kwargs["observation_keys"] = ("glyphs", "blstats", "message")
        self._inners = [type(self.world)(**kwargs) for _ in range(n)]
        for inner, rng in zip(self._inners, _generators(seeds)):
            inner.np_random = rng
            inner.savedir = None
        self._games = Games(self._inners)
        self._view = original.get_wrapper_attr("view")
        self._status = original.get_wrapper_attr("status")
        self._ours = not isinstance(self.world, NetHackScore)
        self._step_game = [game.step for game in self._games.playing]
        self._keys = np.array(list(map(int, self.world.actions)))
        # The random streams before the running games, and the actions of these, (N, steps).
        self._origins: list[dict[str, Any]] = [{} for _ in range(n)]
        self._played = np.zeros((n, MIN_KEPT_STEPS), np.int16)
        self._won = np.zeros(n, bool)

    def reset(self, *, seed: int | Sequence[int] | None = None, options: Options | None = None) -> EnvReset:
        """As `BatchedEnv.reset`; game i is seeded with `seed + i`, or with number i of a list."""
        if seed is not None:
            if isinstance(seed, int | np.integer):
                seed = range(seed, seed + self.num_envs)
            seeds = list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(f"{len(seeds)} seeds do not fit {self.num_envs} games; give as many, or one number")
            mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
            for inner, rng, is_reset in zip(self._inners, _generators(seeds), mask):
                if is_reset:
                    inner.np_random = rng
        return super().reset(options=options)

    def _advance(self, actions: Array) -> Outcome:
        longest = int(self._steps.max())
        if longest > self._played.shape[1]:
            self._played = np.concatenate([self._played, np.zeros_like(self._played)], 1)
        self._played[self._everywhere, self._steps - 1] = actions
        games = self._games
        keys = self._keys[actions].tolist()
        before = games.blstats[:, STANDING]
        for step, key in zip(self._step_game, keys):
            step(key)
        # Some games ask a question, which is answered before the next step.
        is_asking = games.internal[:, 1:4].any(1)
        for row in np.flatnonzero(is_asking).tolist():
            self._settle(row, keys[row])
        if self._ours:
            rewards, self._won = self.world.judge(games, before)
        else:
            rewards = score(games, before, self.world.penalty_step)
        return rewards, games.are_over() | self._won

    def _settle(self, row: int, key: int) -> None:
        if self._ours:
            answer(self._games, row, key)
        else:
            settle(self._games, row)

    def _observe(self, state: State, out: Array) -> None:
        self._view.write(self._games, self._everywhere, out)

    def _show(self, rows: Array) -> None:
        text = self.modalities["text"]
        games = self._games
        has_message = games.message[rows, 0] != 0
        text[rows] = ""
        for row in rows[has_message].tolist():
            text[row] = caption(games.text_of(row))
        if self._status:
            for row in rows.tolist():
                text[row] = with_status(text[row], games.blstats[row])

    def _success(self, terminated: Array) -> Array | None:
        # NetHackScore has no end that is a success.
        return None if self.world.spec.name == "NetHackScore" else self._won

    def _start(self, rows: Array, out: Array) -> None:
        for row in rows.tolist():
            inner = self._inners[row]
            self._origins[row] = copy.deepcopy(inner.np_random.bit_generator.state)
            draw_game(inner)
            inner.reset()
        self.state = {"blstats": self._games.blstats}
        self._view.write(self._games, rows, out)

    def _saved_state(self) -> StateDict:
        longest = int(self._steps.max())
        return {"origins": copy.deepcopy(self._origins), "actions": self._played[:, :longest].copy()}

    def _return_to(self, saved: StateDict) -> None:
        for inner, origin in zip(self._inners, saved["origins"]):
            inner.np_random.bit_generator.state = copy.deepcopy(origin)
        self._begin(self._everywhere)
        played = np.asarray(saved["actions"], np.int16)
        steps = np.asarray(saved["steps"]).tolist()
        games = self._games
        for row, count in enumerate(steps):
            for key in self._keys[played[row, :count]].tolist():
                self._step_game[row](key)
                if games.internal[row, 1:4].any():
                    self._settle(row, key)
        longest = played.shape[1]
        self._played = np.zeros((self.num_envs, max(MIN_KEPT_STEPS, longest)), np.int16)
        self._played[:, :longest] = played

    def close_extras(self, **kwargs: Any) -> None:
        for inner in self._inners:
            inner.close()


def _generators(seeds: Sequence[int]) -> list[np.random.Generator]:
    return [seeding.np_random(int(seed))[0] for seed in seeds]
