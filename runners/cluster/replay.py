"""A run with a replay, on a cluster: actors choose actions and step environments, the learner stores, relabels, learns.

    learner: weights, where its random numbers stand -> actor: rows (T, n) of transitions -> learner: replay, updates

The learner's loop is the local one: it stores a row (N,) of all environments, learns, and takes the next one. With
`lag=0` the actors are asked for each row with the newest weights, and with one actor the numbers are the local run's.
With `lag=1` they collect the next `agent.rollout` steps while the learner learns from those before, so that the weights
they act by are those from before the last rollout was learnt from. Rewards are computed by the learner, as locally.
"""

import dataclasses
import math
import time
from collections import deque
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from agents.base import Steps
from agents.dyna.agent import Dyna
from envs.steps import Chunk, from_vector_step
from envs.transitions import Transitions, join, map_obs
from envs.types import MODALITY_FIELDS, Obs
from rewards.base import rows_without_previous, values_at_obs
from runners.cluster.actor import Actor, Outline, State
from runners.run.config import TrainConfig


def new_draws(words: list[int]) -> State:
    """Where an actor's random numbers begin, for actions before the first update and for those of the policy."""
    rng = np.random.default_rng(words)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    return {"rng": rng.bit_generator.state, "generator": generator.get_state()}


class ActingDyna(Dyna):
    """Acts; the learner recovers from weights that are NaN or infinite."""

    failed = False

    def keep_or_restore(self, finite: bool) -> bool:
        self.failed |= not finite
        return finite


class Successes:
    """Stands in an actor for the counts of episodes, which the learner keeps: the success (n,) of each row, or NaN."""

    def __init__(self, n: int) -> None:
        self.running = np.zeros(n)
        self.rows: list[np.ndarray] = []

    def count(self, reward: Any, valid: Any, ended: Any, success: np.ndarray | None = None) -> None:
        unknown = np.full(len(self.running), np.nan)
        self.rows.append(unknown if success is None else success[0])


class ReplayActor(Actor):
    """The environments of some columns, and the policy of an agent whose replay is elsewhere."""

    def _make_agent(self, config: TrainConfig, columns: slice, outline: Outline, generation: int) -> None:
        # Nothing is learnt here: no model, no demonstrations, and a replay that is not read.
        idle: Any = dict.fromkeys(("update", "planner", "filter", "uncertainty", "adaptive"), "none")
        idle |= {"reference": "", "kl": 0.0, "demos": "", "imitate": 0.0, "buffer_size": self.envs.num_envs + 1}
        options = dataclasses.replace(config.agent, **idle)
        self.agent = ActingDyna(self.envs, options, scorer=outline, seed=config.seed)
        self.successes = Successes(self.envs.num_envs)
        self.agent.steps.episodes = self.successes  # type: ignore[assignment]
        # The first actor draws what a local run draws, unless the learner draws meanwhile.
        self._is_first = columns.start == 0
        if not self._is_first or generation or config.lag:
            self._set_draws(new_draws([config.seed, 3, columns.start, generation]))
        self._unread = set(MODALITY_FIELDS) - outline.requires
        # Whether the next row says that the episodes before it were lost.
        self._lost = False

    def _set_draws(self, draws: State) -> None:
        self.agent.rng.bit_generator.state = draws["rng"]
        self.agent.learner.generator.set_state(draws["generator"].clone())

    def begin(self, seed: int, lost: bool = False) -> tuple[Obs, State]:
        steps = self.agent.steps
        steps.obs = None
        steps.seed = seed
        steps.begin()
        self._lost = lost
        return steps.obs, steps.cursor.modalities

    def restore(self, state: State, envs: State) -> None:
        self._set_draws(state["draws"])
        steps = self.agent.steps
        steps.obs = state["obs"]
        steps.cursor.load_state_dict(state["cursor"])
        self.envs.restore(envs)
        self._lost = False

    def snapshot(self) -> State:
        return {"envs": self.envs.snapshot(), "standing": self._standing()}

    def _standing(self) -> State:
        """Where the episodes and the random numbers stand between two rows."""
        agent = self.agent
        draws = {"rng": agent.rng.bit_generator.state, "generator": agent.learner.generator.get_state()}
        return {"obs": agent.steps.obs, "cursor": agent.steps.cursor.state_dict(), "draws": draws}

    def collect(self, number: int, weights: State, rows: int) -> Any:
        """So many rows by the policy of these weights; where servers look at frames, without them, and the frames."""
        began = time.perf_counter()
        agent = self.agent
        steps = agent.steps
        agent.load_acting_state(weights["policy"]["agent"])
        generator_state = weights["policy"]["generator"]
        if self._is_first and generator_state is not None:
            agent.learner.generator.set_state(generator_state.clone())
        agent.failed = False
        self.successes.rows.clear()
        zeroed_before = steps.on_nan.zeroed
        chunk = Chunk(rows)
        for _ in range(rows):
            chunk.add(self._lost_row() if self._lost else steps.advance(agent))
        (batch,) = chunk.take()
        batch = batch.replace(**dict.fromkeys(self._unread))
        part = self._standing()
        part["number"] = number
        part["version"] = weights["version"]
        part["success"] = np.stack(self.successes.rows)
        part["failed"] = agent.failed
        part["zeroed"] = steps.on_nan.zeroed - zeroed_before
        frames = None
        if self.embeds:
            frames = frames_of(batch)
            batch = batch.replace(frame=None, obs_frame=None)
        part["batch"] = vars(batch)
        part["seconds"] = time.perf_counter() - began
        return part if frames is None else (part, frames)

    def _lost_row(self) -> Transitions:
        """A row that is no transition: the episodes before it were lost, and others begin."""
        self._lost = False
        steps = self.agent.steps
        encoding = self.agent.encoding
        action = encoding.decode(np.zeros((steps.n, encoding.action_size), np.float32))
        reward = np.zeros(steps.n, np.float32)
        lost = np.ones(steps.n, bool)
        infos = {**steps.cursor.modalities, "final_obs": steps.obs, "lost": lost}
        self.successes.count(reward, ~lost, lost)
        mode = AutoresetMode.SAME_STEP
        return from_vector_step(steps.cursor, mode, steps.obs, action, reward, steps.obs, ~lost, lost, infos)


class FleetSteps(Steps):
    """The learner's side: row after row of all environments, out of the parts that actors collected."""

    saved = Steps.saved | {"draws": "draws"}
    envs: Any

    def __init__(self, envs: Any, seed: int, scorer: Any = None) -> None:
        super().__init__(envs, seed, scorer)
        self.in_rollouts = envs.lag > 0
        self._reads_obs_frame = scorer is not None and "obs_frame" in scorer.requires
        # Where the random numbers of each actor stand; without a lag the first draws from the agent's.
        self.draws: list[State] = []
        self.rng = np.random.default_rng(seed)
        # Rows that were not given out yet, each with its successes and the observation to act on after it.
        self._rows: deque[tuple[Transitions, np.ndarray, Obs]] = deque()
        self.seconds = {"environment": 0.0, "waiting": 0.0}
        envs.seconds = self.seconds

    def begin(self) -> bool:
        began = super().begin()
        if began:
            self._rows.clear()
        return began

    def advance(self, agent: Dyna) -> Transitions:
        if not self._rows:
            self._gather(agent)
        batch, success, self.obs = self._rows.popleft()
        self.episodes.count(batch.reward[None], batch.valid[None], batch.ended[None], success[None])
        return batch

    def _gather(self, agent: Dyna) -> None:
        """Ask every actor for rows by the present policy, and put the oldest that they owe side by side."""
        fleet = self.envs
        self.rng = agent.rng
        fleet.settle(self)
        # Without a lag the first actor draws from the learner's own numbers, as a local run does.
        generator = agent.learner.generator
        lends_generator = not fleet.lag and generator.device.type == "cpu"
        policy = {"agent": agent.acting_state(), "generator": generator.get_state() if lends_generator else None}
        start = time.perf_counter()
        fleet.request(policy, math.ceil(agent.config.rollout / self.n) if fleet.lag else 1)
        answers = sorted(fleet.gather(), key=lambda answer: answer[0].start)
        self.seconds["waiting"] += time.perf_counter() - start
        parts = [part for _, part in answers]
        self.draws = [part["draws"] for part in parts]
        agent.rng.bit_generator.state = self.draws[0]["rng"]
        if lends_generator:
            generator.set_state(self.draws[0]["generator"].clone())
        if any(map(itemgetter("failed"), parts)):
            agent.keep_or_restore(False)
        for columns, part in answers:
            self.on_nan.zeroed += part["zeroed"]
            self.seconds["environment"] += part["seconds"] * (columns.stop - columns.start) / self.n
        self._read_rows(parts)

    def _read_rows(self, parts: list[State]) -> None:
        """Put what actors collected (T, n) side by side, as rows (N,)."""
        batches = [vars(self._batch_of(part)) for part in parts]
        side_by_side = partial(np.concatenate, axis=1)
        batch = Transitions(**join(side_by_side, batches))
        success = side_by_side([part["success"] for part in parts])
        last_obs = join(np.concatenate, [part["obs"] for part in parts])
        self.cursor.load_state_dict(join(np.concatenate, [part["cursor"] for part in parts]))
        length = len(batch.valid)
        for t in range(length):
            obs_after = last_obs
            if t + 1 < length:
                obs_after = map_obs(itemgetter(t + 1), batch.obs)
            self._rows.append((batch[t], success[t], obs_after))

    def _batch_of(self, part: State) -> Transitions:
        """The transitions (T, n) of an actor, with what servers made of its frames."""
        batch = Transitions(**part["batch"])
        extras = {}
        count = batch.valid.size
        for name, value in part.get("embedded", {}).items():
            at_next = value[:count].reshape(*batch.shape, -1)
            extras[name] = at_next
            if self._reads_obs_frame:
                extras[f"obs_{name}"] = self._values_at_obs(batch, at_next, value[count:])
        return batch.replace(extras=extras)

    def _values_at_obs(self, batch: Transitions, at_next: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Embeddings of each row's `obs_frame`; `others` are those that `frames_of` put last."""
        return values_at_obs(batch, at_next, lambda missing: others)

    def actor_state(self, columns: slice, number: int) -> State:
        """What the actor of some columns, the first (0) or another, needs to continue from here."""
        entropy = self.rng.bit_generator.state["state"]["state"]
        # The saved run may have had fewer actors, or none.
        draws = new_draws([entropy, columns.start])
        if number < len(self.draws):
            draws = self.draws[number]
        elif number == 0:
            draws["rng"] = self.rng.bit_generator.state
        state = {"obs": self.obs, "cursor": self.cursor.state_dict()}
        return map_obs(lambda rows: rows[columns].copy(), state) | {"draws": draws}

    def load_state_dict(self, state: State) -> None:
        # A local run has no actors.
        super().load_state_dict({"draws": [], **state})
        self._rows.clear()


def frames_of(batch: Transitions) -> np.ndarray:
    """What servers look at: `frame` (T * n, H, W, 3), then `obs_frame` where it is no frame of the row before."""
    assert batch.frame is not None
    frames = batch.frame.reshape(-1, *batch.frame.shape[2:])
    if batch.obs_frame is None:
        return frames
    return np.concatenate([frames, batch.obs_frame[rows_without_previous(batch)]])
