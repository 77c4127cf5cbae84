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

from envs.transitions import Transitions, concatenate, index_obs, map_obs, stack
from envs.types import Obs
from lodestar.mappings import map_values
from runners.evaluate import SEED, policy
from runners.explain.policy import PolicyView
from runners.run.build import Trained
from runners.run.output import Ticker
from runners.run.served import play_steps
from runners.run.video import picture

# No further episode begins after so many rows, but for the second.
MAX_ROWS_BEFORE_EPISODE = 10_000
# An episode, and how many steps of it have been made.
Moment = tuple[int, int]
# The name of the task's own reward where it is no part of the reward.
OUTSIDE = "task (not in the reward)"


@dataclass
class PlayedRows:
    """M rows of E episodes, one after the other.

    Attributes:
        batch: (M,), without frames.
        episode: int (M,), the number of each row's episode.
        scaled: stream -> its reward, float32 (M,), not weighted; and the task's, if it is no part.
        weights: stream -> its weight at this checkpoint.
        chosen: (M, n), the sampled numbers; without meaning if the policy has no probabilities.
        memory: (M, units), a GRU's before each row.
        texts: captions that are not empty.
        returns: of the task, as the environment counted them.
        cut: how many episodes had not ended.
    """

    batch: Transitions
    episode: np.ndarray
    scaled: dict[str, np.ndarray]
    weights: dict[str, float]
    gamma: dict[str, float]
    chosen: torch.Tensor
    memory: np.ndarray | None
    texts: dict[Moment, str]
    returns: list[float]
    cut: int

    @property
    def parts(self) -> dict[str, np.ndarray]:
        """Stream -> its weighted reward, float32 (M,)."""
        return {name: np.float32(self.weights[name]) * values for name, values in self.scaled.items()}

    @property
    def episode_bounds(self) -> np.ndarray:
        """The first row of each episode, and M: (E + 1,)."""
        return np.searchsorted(self.episode, np.arange(len(self.returns) + 1))

    def inputs_at(self, rows: Any) -> tuple[Obs, Any]:
        """Observations acted on, and memories, of some rows."""
        memory = None if self.memory is None else self.memory[rows]
        return index_obs(self.batch.obs, rows), memory


def play(trained: Trained, view: PolicyView, env: Any, episodes: int, steps: int, seed: int) -> PlayedRows:
    """Play episodes of at most so many steps.

    The i-th begins from the seed of the i-th episode of `runners.evaluate`.
    """
    mix = trained.mix
    first_seed = SEED + 1000 * seed
    env.action_space.seed(first_seed)
    torch.manual_seed(first_seed)
    act = policy(view.model, trained.config)
    tick = Ticker("playing")
    batches = []
    scores = []
    chosen: list[torch.Tensor] = []
    memories = []
    memory = np.zeros((1, view.units), np.float32)
    texts: dict[Moment, str] = {}
    returns = []
    lengths = []
    cut = 0

    def choose(obs: Any, begins: bool, *_: Any) -> Any:
        """The policy's action; its numbers, and the memory before it, are kept."""
        nonlocal memory
        if begins:
            memory = np.zeros_like(memory)
        memories.append(memory)
        if view.distributions is None:
            action = act(obs, begins)
            choice = torch.zeros(1, 1)
        else:
            action, choice, memory = _sample_action(view, obs, memory)
        chosen.append(choice)
        return action

    for number in range(episodes):
        if number > 1 and len(chosen) >= MAX_ROWS_BEFORE_EPISODE:
            break
        rows = []
        for row, _, info in play_steps(env, choose, first_seed + number, steps):
            rows.append(row)
            last_info = info
            tick("episode {} of {}, step {:,}", number + 1, episodes, len(rows))
        lengths.append(len(rows))
        batch = mix.embed(stack(rows))
        captions = [*np.asarray(batch.obs_text)[:1, 0], *np.asarray(batch.text)[:, 0]]
        texts |= {(number, time): str(text) for time, text in enumerate(captions) if text}
        scores.append(mix.scale_rewards(mix.score(batch)[0]))
        # Frames of all episodes would fill the memory.
        batches.append(batch.flatten().replace(frame=None, obs_frame=None, extras={}))
        if batch.ended[-1].any():
            returns.append(float(last_info["episode"]["r"]))
        else:
            returns.append(float(batch.reward.sum()))
            cut += 1
    batch = concatenate(batches)
    weights = map_values(float, mix.weights(trained.step))
    scaled = {}
    gamma = {}
    for name, stream in mix.streams.items():
        scaled[name] = np.concatenate([episode_scores[name][:, 0] for episode_scores in scores])
        gamma[name] = float(stream.gamma)
    if "task" not in scaled:
        scaled[OUTSIDE] = np.asarray(batch.reward)
        weights[OUTSIDE] = 0.0
        gamma[OUTSIDE] = trained.config.agent.gamma
    return PlayedRows(
        batch=batch,
        episode=np.repeat(np.arange(len(lengths)), lengths),
        scaled=scaled,
        weights=weights,
        gamma=gamma,
        chosen=torch.cat(chosen),
        memory=np.concatenate(memories) if view.units else None,
        texts=texts,
        returns=returns,
        cut=cut,
    )


def _sample_action(view: PolicyView, obs: Any, memory: np.ndarray) -> tuple[Any, torch.Tensor, np.ndarray]:
    """An action as the environment takes it, its numbers (1, n), and the memory after it."""
    distributions: Any = view.distributions
    batch = map_obs(lambda x: np.asarray(x)[None], obs)
    with torch.no_grad():
        numbers = torch.stack([part.sample() for part in distributions(batch, memory)], -1)
    if view.units:
        _, memory = view.model.predict(batch, state=memory)
    action = np.asarray(view.to_env(numbers.numpy())[0], view.model.action_space.dtype)
    # Indexing with () makes a number of an array without axes.
    return action[()], numbers, memory


def pictures(
    played: PlayedRows, env: Any, wanted: Collection[Moment], seed: int, drawn: bool
) -> dict[Moment, np.ndarray]:
    """Pictures (H, W, 3) of moments.

    Those are missing where an episode did not come out again as it was.
    """
    images = {}
    begins = played.episode_bounds
    batch = played.batch
    # Of each episode the last wanted time.
    last_times = dict(sorted(wanted))
    for number, last_time in last_times.items():
        obs, _ = env.reset(seed=SEED + 1000 * seed + number)
        for time in range(last_time + 1):
            row = begins[number] + time
            if time > 0:
                obs, *_ = env.step(np.asarray(batch.action[row - 1])[()])
            if (number, time) not in wanted:
                continue
            # After the last step there is no row of the episode that begins there.
            if row == begins[number + 1]:
                same = _is_same(obs, batch.next_obs, row - 1)
            else:
                same = _is_same(obs, batch.obs, row)
            if same:
                images[number, time] = picture(env, obs, drawn)
    return images


def _is_same(obs: Any, rows: Any, row: int) -> bool:
    if isinstance(obs, dict):
        return all(_is_same(obs[key], rows[key], row) for key in obs)
    return np.array_equal(np.asarray(obs, rows.dtype), rows[row])
