"""Episodes of a trained policy as rows with every stream's reward; and pictures of chosen moments, played again.

Actions are sampled where the policy has probabilities, as in training: what it would like to do more often can only be
seen where it sometimes does something else. Pictures are not kept while playing: an episode is played again from its
seed and its actions up to the moment that is wanted, and shown only if the observation there is the one of before.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from envs.steps import Cursor, from_gym_step, modalities_of_one
from envs.transitions import Transitions, concatenate, map_obs, stack
from envs.types import Obs
from runners.cli.output import Ticker
from runners.evaluate import SEED, policy
from runners.explain.policy import PolicyView
from runners.run.build import Trained
from runners.run.video import picture

MOST = 10_000  # rows after which no further episode begins, but for the second
Moment = tuple[int, int]  # an episode, and how many steps of it have been made
OUTSIDE = "task (not in the reward)"


@dataclass
class PlayedRows:
    """M rows of E episodes, one after the other."""

    batch: Transitions  # (M,), without frames
    episode: np.ndarray  # int (M,), whose row it is
    scaled: dict[str, np.ndarray]  # stream -> float32 (M,), not weighted; and the task's, where it is no part
    weights: dict[str, float]  # stream -> its weight at this checkpoint
    gamma: dict[str, float]
    chosen: torch.Tensor  # (M, n), what was sampled; of no use where the policy has no probabilities
    memory: np.ndarray | None  # (M, units), a GRU's before each row
    texts: dict[Moment, str]  # captions that are not empty
    returns: list[float]  # of the task, as the environment counted them
    cut: int  # episodes that had not ended

    @property
    def parts(self) -> dict[str, np.ndarray]:
        """Stream -> its weighted reward, float32 (M,)."""
        return {name: np.float32(self.weights[name]) * values for name, values in self.scaled.items()}

    @property
    def begins(self) -> np.ndarray:
        """The first row of each episode, and M: (E + 1,)."""
        return np.searchsorted(self.episode, np.arange(len(self.returns) + 1))

    def at(self, rows: Any) -> tuple[Obs, Any]:
        """Observations acted on, and memories, of some rows."""
        memory = None if self.memory is None else self.memory[rows]
        return map_obs(lambda x: x[rows], self.batch.obs), memory


def play(trained: Trained, view: PolicyView, env: Any, episodes: int, steps: int, seed: int) -> PlayedRows:
    """Play episodes of at most so many steps; the i-th begins from the seed of the i-th of `runners.evaluate`."""
    config, mix = trained.config, trained.mix
    first, tick = SEED + 1000 * seed, Ticker("playing")
    env.action_space.seed(first)
    torch.manual_seed(first)
    batches, scores, chosen = list[Transitions](), list[dict[str, np.ndarray]](), list[torch.Tensor]()
    memories, returns, texts = list[np.ndarray](), list[float](), dict[Moment, str]()
    act, cut = policy(view.model, config), 0
    for number in range(episodes):
        if number > 1 and len(chosen) >= MOST:
            break
        obs, info = env.reset(seed=first + number)
        cursor, rows, ended, memory = Cursor(1), list[Transitions](), False, np.zeros((1, view.units), np.float32)
        cursor.begin(modalities_of_one(info))
        texts[number, 0] = str(info.get("text", ""))
        while not ended and len(rows) < steps:
            memories.append(memory)
            if view.parts is None:
                action, choice = act(obs, not rows), torch.zeros(1, 1)
            else:
                wide = map_obs(lambda x: np.asarray(x)[None], obs)
                with torch.no_grad():
                    choice = torch.stack([part.sample() for part in view.parts(wide, memory)], -1)
                memory = view.model.predict(wide, state=memory)[1] if view.units else memory
                action = np.asarray(view.to_env(choice.numpy())[0], view.model.action_space.dtype)[()]
            chosen.append(choice)
            next_obs, reward, terminated, truncated, info = env.step(action)
            rows.append(from_gym_step(cursor, obs, action, float(reward), next_obs, terminated, truncated, info))
            texts[number, len(rows)] = str(info.get("text", ""))
            obs, ended = next_obs, terminated or truncated
            tick("episode {} of {}, step {:,}", number + 1, episodes, len(rows))
        batch = mix.embed(stack(rows))
        scores.append(mix.scaled(mix.score(batch)[0]))
        batches.append(batch.flatten().replace(frame=None, obs_frame=None, extras={}))
        returns.append(float(info["episode"]["r"]) if ended else float(batch.reward.sum()))
        cut += not ended
    whole = concatenate(batches)
    scaled = {name: np.concatenate([each[name][:, 0] for each in scores]) for name in mix.streams}
    weights = {name: float(weight) for name, weight in mix.weights(trained.step).items()}
    gamma = {name: float(stream.gamma) for name, stream in mix.streams.items()}
    if "task" not in scaled:
        scaled[OUTSIDE], weights[OUTSIDE], gamma[OUTSIDE] = np.asarray(whole.reward), 0.0, config.agent.gamma
    episode = np.repeat(np.arange(len(batches)), [each.shape[0] for each in batches])
    kept = np.concatenate(memories) if view.units else None
    texts = {at: text for at, text in texts.items() if text}
    return PlayedRows(whole, episode, scaled, weights, gamma, torch.cat(chosen), kept, texts, returns, cut)


def pictures(
    played: PlayedRows, env: Any, wanted: Collection[Moment], seed: int, drawn: bool
) -> dict[Moment, np.ndarray]:
    """Pictures (H, W, 3) of moments; those are missing where an episode did not come out again as it was."""
    found: dict[Moment, np.ndarray] = {}
    for number in sorted({moment[0] for moment in wanted}):
        last = max(time for episode, time in wanted if episode == number)
        obs, _ = env.reset(seed=SEED + 1000 * seed + number)
        for time in range(last + 1):
            row = played.begins[number] + time
            if time > 0:
                obs, *_ = env.step(np.asarray(played.batch.action[row - 1])[()])
            if (number, time) in wanted:
                ended = row == played.begins[number + 1]
                rows, place = (played.batch.next_obs, row - 1) if ended else (played.batch.obs, row)
                if _same(obs, rows, place):
                    found[number, time] = picture(env, obs, drawn)
    return found


def _same(obs: Any, rows: Any, place: int) -> bool:
    if isinstance(obs, dict):
        return all(_same(obs[key], rows[key], place) for key in obs)
    return np.array_equal(np.asarray(obs, rows.dtype), rows[place])
