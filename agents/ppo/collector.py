"""The environments' side of PPO: rollouts, written row by row into arrays that are allocated once."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agents.base import Episodes, has_reset
from agents.networks.actor_critic import correlate
from agents.ppo.seams import Batch, Targets
from envs.masks import check_mask, has_allowed_action
from envs.transitions import OneGroup, OnNan, Rollout, index_obs, map_obs, refuse
from envs.types import MASK, MODALITIES
from lodestar.state import Stateful

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# A row that another policy acted counts at most so many times.
MAX_IMPORTANCE = 2


def sequences(x: np.ndarray, length: int) -> np.ndarray:
    """(T, N, ...) -> (length, T / length * N, ...): sequences side by side, those of the first steps first."""
    count = len(x) // length
    n = x.shape[1]
    by_sequence = x.reshape(count, length, *x.shape[1:])
    by_sequence = by_sequence.swapaxes(0, 1)
    side_by_side = np.ascontiguousarray(by_sequence)
    return side_by_side.reshape(length, count * n, *x.shape[2:])


class Collector(Stateful):
    """The environments' side of an on-policy agent; its state is where they stand between two rollouts.

    `vector`, float32 (T + 1, N, D), is what the policy read, `chosen` (T, N, choices) its actions, `starts` bool (T +
    1, N) where an episode begins; `values` (T + 1, N, K), `log_prob` (T, N) and `last_values` (T, N, K), of the last
    observation of an episode that was truncated; `importance` (T, N), of rows that another policy acted (`catch_up`);
    `seconds` say where time went. Environments elsewhere bring a `collector` class of their own.
    """

    importance: np.ndarray | None = None
    kind_of_rollout: type[Rollout] = Rollout

    saved = {
        "rollout": "rollout",
        **{key: f"episodes.{name}" for key, name in Episodes.saved.items()},
        "rng": "rng",
        "hidden": "learner.hidden",
        "began": "began",
    }

    def __init__(self, agent: "PPO") -> None:
        config = agent.config
        envs: Any = agent.envs
        learner: Any = agent.actor
        streams = len(agent.streams)
        length = config.n_steps
        self.envs = envs
        self.learner = learner
        self.seed = agent.seed
        self.sequence = config.sequence if config.gru else length
        self.inputs = learner.net.inputs
        self.actions = learner.net.actions
        self.recurrent = learner.net.gru is not None
        # What steps the environments, in groups; a vector is one group.
        self.stepper = envs if hasattr(envs, "recv") else OneGroup(envs)
        self.rollout = self.kind_of_rollout(length, envs, agent.scorer.requires & set(MODALITIES))
        # Row t + 1 is there once step t is made.
        self.observed: Any = self.rollout.obs
        self.vector: Any = self.inputs.vector(self.rollout.obs, 2)
        # Whether `vector` is the observations themselves, as they are flat float32 numbers.
        is_array = isinstance(self.rollout.obs, np.ndarray)
        self._shared = is_array and np.shares_memory(self.vector, self.rollout.obs)

        n = envs.num_envs
        action_type = np.float32 if self.actions.gaussian else np.int64
        self.chosen = np.zeros((length, n, self.actions.choices), action_type)
        self.values = np.zeros((length + 1, n, streams), np.float32)
        self.log_prob = np.zeros((length, n), np.float32)
        self.last_values = np.zeros((length, n, streams), np.float32)
        self.starts = np.zeros((length + 1, n), bool)
        # (N, units) of a recurrent policy, before the first row of each sequence.
        self.hidden: list[Any] = []
        if self.recurrent:
            learner.start(n)

        self.episodes = Episodes(n)
        self.seconds = dict.fromkeys(("environment", "inference", "reward", "update"), 0.0)
        self.rng = np.random.default_rng([agent.seed, 1])
        self.began = False
        # Whether the environments are known to have been reset.
        self._known = False
        # The scorer of a user's own need not say what to do with a NaN.
        self.on_nan = getattr(agent.scorer, "on_nan", OnNan())
        self.uses_masks: bool = config.masks
        # Whether the environments give masks, and they are used.
        self.masked = False

    def begin(self) -> bool:
        """Reset the environments where that is needed, and say whether it was."""
        began = self.began and (self._known or has_reset(self.envs))
        self.began = True
        self._known = True
        if began:
            return False
        self._begin(*self.envs.reset(seed=self.seed))
        self.episodes.running[:] = 0
        return True

    def _begin(self, obs: Any, infos: Any) -> None:
        self.masked = MASK in infos and self.uses_masks and bool(self.actions.sizes)
        if self.masked:
            check_mask(infos[MASK][0], self.actions.sizes, "of environment 0 at step 0 of its episode")
            self._read_masks()
        self.rollout.begin(obs, infos)
        self.starts[0] = True
        if self.recurrent:
            self.learner.start(self.rollout.n)

    def _read_masks(self) -> None:
        self.masked = True
        self.rollout.modality_names = tuple(sorted({*self.rollout.modality_names, MASK}))

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        """Fill the rollout, group by group; `on_step` gets the row that all have just stepped; its False stops."""
        rollout = self.rollout
        stepper = self.stepper
        length = rollout.length
        noise = self.actions.draw(self.rng, length, rollout.n)
        correlate(noise, self.learner.config.noise_correlation)
        self.learner.begin_rollout()
        if self.recurrent:
            n_sequences = length // self.sequence
            self.hidden = [self.learner.hidden.clone() for _ in range(n_sequences)]
        first_obs = index_obs(rollout.obs, 0)
        self._read(0, slice(0, rollout.n), first_obs)
        # A group acts on row t as soon as its step t - 1 is there, while the others still step.
        now = time.perf_counter()
        environment_s = inference_s = 0.0
        for t in range(length + 1):
            for number, group in enumerate(stepper.groups):
                if t > 0:
                    step = stepper.recv(number)
                    rollout.write(t - 1, group, *step)
                    self._read(t, group, step[0])
                    if self.recurrent:
                        self._mark_starts(t, group)
                    before = now
                    now = time.perf_counter()
                    environment_s += now - before
                if t < length:
                    self._act(t, group, noise[t, group])
                    before = now
                    now = time.perf_counter()
                    inference_s += now - before
                    stepper.send(rollout.action[t, group], number)
            if t > 0 and not on_step(t - 1):
                self._abandon(t)
                return False
        self.seconds["environment"] += environment_s
        self.seconds["inference"] += inference_s
        self._finish()
        return True

    def _finish(self) -> None:
        """Stop before NaN or infinity reaches a weight, and count the episodes."""
        rollout = self.rollout
        reward = self.on_nan(rollout.reward)
        rollout.reward[:] = reward
        record = {
            "obs": map_obs(lambda x: x[: rollout.length], rollout.obs),
            "action": rollout.action,
            "reward": reward,
            "next_obs": map_obs(lambda x: x[1:], rollout.obs),
        }
        read = {"reward": reward, "observation": self.vector, "action": rollout.action}
        refuse(read, rollout.steps, record)
        self.episodes.count(reward, rollout.valid, rollout.ended, rollout.success)

    def _read(self, t: int, group: slice, obs: Any) -> None:
        if not self._shared:
            self.vector[t, group] = self.inputs.vector(obs)

    def _act(self, t: int, group: slice, noise: np.ndarray) -> None:
        learner = self.learner
        vector = self.vector[t, group]
        pixels = self._pixels((t, group))
        mask = self._mask(t, group)
        if learner.deferred:
            action = learner.act(vector, pixels, noise, mask)
        else:
            if self.recurrent and t % self.sequence == 0:
                self.hidden[t // self.sequence][group] = learner.hidden[group]
            starts = self.starts[t, group]
            action, values, log_prob = learner.act(vector, pixels, noise, mask, group, starts)
            self.values[t, group] = values
            self.log_prob[t, group] = log_prob
        self.chosen[t, group] = action
        self.rollout.action[t, group] = self.actions.to_env(action)

    def _pixels(self, rows: Any) -> dict[str, Any]:
        if not self.inputs.images:
            return {}
        obs = index_obs(self.rollout.obs, rows)
        return self.inputs.pixels(obs)

    def _mask(self, t: int, group: slice) -> np.ndarray | None:
        """The actions allowed at row t, bool (B, outputs); None for all. A `MaskFault` where none is."""
        if not self.masked:
            return None
        rollout = self.rollout
        choices = self.actions.sizes
        # A row that only resets an environment may choose anything.
        mask = rollout.modalities[MASK][t, group] | rollout.resetting[group, None]
        has_action = has_allowed_action(mask, choices)
        if not has_action.all():
            row = group.start + int(np.argmin(has_action))
            step = 0
            if t > 0 and not rollout.restarts[t - 1, row]:
                step = int(rollout.steps()[t - 1, row]) + 1
            check_mask(
                rollout.modalities[MASK][t, row],
                choices,
                f"of environment {row} at step {step} of its episode",
            )
        return mask

    def _mark_starts(self, t: int, group: slice) -> None:
        """Where episodes begin; and the value of a last observation, which needs the state of this moment."""
        rollout = self.rollout
        ended = rollout.terminated[t - 1, group] | rollout.truncated[t - 1, group]
        begins = ended if rollout.same_step else ~rollout.valid[t - 1, group]
        self.starts[t, group] = begins
        has_finals = ended.any() and len(rollout.finals) > 0
        if has_finals and rollout.finals[-1][0] == t - 1:
            _, columns, last = rollout.finals[-1]
            vector = self.inputs.vector(last)
            hidden = self.learner.hidden[columns]
            values = self.learner.values(vector, self.inputs.pixels(last), hidden)
            self.last_values[t - 1, columns] = values

    def _abandon(self, t: int) -> None:
        """Stop in the middle: what was collected is dropped."""
        if t < self.rollout.length:
            # The next step is already on its way.
            for number in range(len(self.stepper.groups)):
                self.stepper.recv(number)
        self.rollout.finals.clear()
        self.rollout.valid[:] = self.rollout.same_step
        self.began = False

    def evaluate(self) -> None:
        """Values and log-probabilities that acting left out, and the values of the observations episodes ended on."""
        length = self.rollout.length
        learner = self.learner
        if self.recurrent:
            hidden = learner.hidden.clone()
            hidden[learner.tensor(self.starts[length])] = 0
            pixels = self._pixels(length)
            self.values[length] = learner.values(self.vector[length], pixels, hidden)
        elif learner.deferred:
            self.evaluate_by(learner)
        else:
            last = learner.evaluate(self.vector[length], self._pixels(length), None)
            self.values[length] = last[0]
            self._evaluate_timed_out(learner)

    def evaluate_by(self, learner: Any) -> None:
        """All values and log-probabilities, by a learner that need not be the one that acted; none with a memory."""
        length, n = self.log_prob.shape
        vector = self.vector.reshape((length + 1) * n, -1)
        pixels = map_obs(lambda x: x.reshape(-1, *x.shape[2:]), self._pixels(slice(None)))
        masks = map_obs(lambda x: x.reshape(length * n, -1), self._masks())
        actions = self.chosen.reshape(length * n, -1)
        values, log_prob = learner.evaluate(vector, pixels, actions, masks)
        self.values[:] = values.reshape(self.values.shape)
        self.log_prob[:] = log_prob.reshape(length, n)
        self._evaluate_timed_out(learner)

    def catch_up(self, learner: Any) -> None:
        """Of a rollout that mu acted and the learner's pi learns from: what pi says of it, and each row's importance.

        Values, and the log-probabilities that PPO's ratio is taken to, become pi's; how far a row's advantage is above
        the mean counts pi(a | s) / mu(a | s) times, at most twice.
        """
        acted_log_prob = self.log_prob.copy()
        self.evaluate_by(learner)
        log_importance = self.log_prob - acted_log_prob
        self.importance = np.exp(np.minimum(log_importance, math.log(MAX_IMPORTANCE)))

    def _evaluate_timed_out(self, learner: Any) -> None:
        timed_out = self.rollout.timed_out()
        if timed_out is not None:
            times, columns, last = timed_out
            pixels = self.inputs.pixels(last)
            values, _ = learner.evaluate(self.inputs.vector(last), pixels, None)
            self.last_values[times, columns] = values

    def batch(self, targets: Targets) -> Batch:
        """The rollout as rows to learn from, with their targets (T, N)."""
        length, n = self.log_prob.shape

        def rows_of(x: Any) -> Any:
            if self.recurrent:
                return sequences(x, self.sequence)
            return x.reshape(length * n, *x.shape[2:])

        pixels = self._pixels(slice(0, length))
        batch = Batch(
            vector=rows_of(self.vector[:length]),
            pixels=map_obs(rows_of, pixels),
            action=rows_of(self.chosen),
            targets=Targets(rows_of(targets.rows)),
            mask=map_obs(rows_of, self._masks()),
        )
        if self.recurrent:
            batch.valid = rows_of(self.rollout.valid)
            batch.starts = rows_of(self.starts[:length])
            batch.hidden = self.learner.tensor(torch.cat(self.hidden))
        return batch

    def _masks(self) -> np.ndarray | None:
        """The actions that were allowed, bool (T, N, outputs), any in a row that only resets; None for all."""
        if not self.masked:
            return None
        mask = self.rollout.modalities[MASK][: self.rollout.length]
        return mask | ~self.rollout.valid[..., None]

    def roll(self) -> None:
        """The last row becomes the first one of the next rollout."""
        self.rollout.roll()
        self.starts[0] = self.starts[-1]

    def follow(self, before: "Collector") -> None:
        """Begin where another one, of the same environments, has ended its rollout."""
        self.rollout.follow(before.rollout)
        self.starts[0] = before.starts[-1]
        self.began = before.began
        self._known = before._known
        self.masked = before.masked

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"starts": self.starts[0].copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if MASK in state["rollout"]["shown"] and self.uses_masks:
            self._read_masks()
        super().load_state_dict(state)
        self.starts[0] = state["starts"]
