"""Gymnasium environments side by side, stepped by one lean loop in this process; `envs.vector.workers` spreads them.

A `BufferedVectorEnv` is in SAME_STEP mode. What differs from Gymnasium's SyncVectorEnv:
    - Arrays are returned as they are, not copied, and hold until the next step; rewards are float32.
    - infos are few and dense: `final_obs` with `_final_obs`, `final_info` with `episode` and `is_success`, and the
      modalities of an `Observer`, and action masks (`envs.masks`). Anything else in an environment's info is dropped.
    - Where a worker was lost, episodes end as truncated, in rows that are no transitions: `infos["lost"]`, bool (N,).
    - `send` and `recv` step one of the `groups` alone; `snapshot` and `restore` go by the environments' `Journal`s.

Limits: all environments have the same spaces, which fit into arrays (Box, Discrete, MultiDiscrete, MultiBinary; for
observations also a Dict of them). They have `make`'s `EpisodeStatistics`, and its `Journal` if snapshots are taken.
"""

import functools
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.masks import sizes
from envs.observations import empty_batch, empty_modalities
from envs.transitions import index_obs, put
from envs.types import MASK, EnvReset, Info, MaskFault, Obs, Options, StateDict, VectorStep
from envs.wrappers import Observer, layers

Maker = Callable[[], gym.Env]
# (shape, dtype) -> an array of zeros.
New = Callable[[tuple[int, ...], Any], np.ndarray]
# A method of `Stepper` is done for some rows: row -> its arguments.
Arguments = Mapping[int, tuple[Any, ...]]


@contextmanager
def all_or_none(makers: Sequence[Maker]) -> Iterator[list[Maker]]:
    """The makers; what they have made is closed if the block around its vector fails, as no vector does by itself."""
    envs: list[gym.Env] = []

    def make_and_remember(make: Maker) -> gym.Env:
        envs.append(make())
        return envs[-1]

    try:
        yield [functools.partial(make_and_remember, make) for make in makers]
    except BaseException:
        for env in envs:
            env.close()
        raise


def check_alike(row: int, env: gym.Env, spaces: tuple[gym.Space, gym.Space]) -> None:
    """A ValueError if an environment's observation or action space is not that of its vector."""
    own_spaces = (env.observation_space, env.action_space)
    for name, own, first in zip(("observation", "action"), own_spaces, spaces):
        if own != first:
            raise ValueError(f"environment {row} has the {name} space {own}, the first one {first}; make them alike")


@dataclass(frozen=True, eq=False)
class SharedBuffers:
    """What goes in and out of N environments in one step, one row each."""

    # (N, *obs_shape) and (N, *action_shape).
    obs: Obs
    action: np.ndarray
    # float32 (N,), then bool (N,).
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    # Of the last episode that ended in the row: (N, *obs_shape), float64 (N,), int64 (N,).
    final_obs: Obs
    episode_return: np.ndarray
    episode_length: np.ndarray
    # int8 (N,): 0 where not defined, 1 failed, 2 succeeded.
    success: np.ndarray
    # bool (N,): the episode was lost with its worker.
    lost: np.ndarray

    # int64 (N,): in the first row of each stepper, the row it works on; -1 between two steps.
    turn: np.ndarray

    # frame uint8 (N, H, W, 3), signals float32 (N, K), text object (N,), which is never in shared
    # memory.
    modalities: dict[str, np.ndarray]
    final_modalities: dict[str, np.ndarray]

    # bool (N,): the environment masks its actions; and bool (N, A): what `show_masks` adds to both
    # modalities.
    masked: np.ndarray
    mask: np.ndarray
    final_mask: np.ndarray

    @classmethod
    def like(cls, env: gym.Env, n: int, new: New) -> "SharedBuffers":
        """Buffers for `n` environments like `env`, their arrays made by `new`, always in the same order."""
        observers = layers(env, Observer)
        mask_shape = (n, sum(sizes(env.action_space)) or 1)

        def modalities() -> dict[str, np.ndarray]:
            if not observers:
                return {}
            observer = observers[0]
            return empty_modalities(n, observer.frame_size, observer.caption is not None, len(observer.signals), new)

        return cls(
            obs=empty_batch(env.observation_space, (n,), new),
            action=empty_batch(env.action_space, (n,), new, nested=False),
            reward=new((n,), np.float32),
            terminated=new((n,), bool),
            truncated=new((n,), bool),
            final_obs=empty_batch(env.observation_space, (n,), new),
            episode_return=new((n,), np.float64),
            episode_length=new((n,), np.int64),
            success=new((n,), np.int8),
            lost=new((n,), bool),
            turn=new((n,), np.int64),
            modalities=modalities(),
            final_modalities=modalities(),
            masked=new((n,), bool),
            mask=new(mask_shape, bool),
            final_mask=new(mask_shape, bool),
        )

    def show_masks(self) -> None:
        """Add the masks to the modalities: from the first mask on, so that other environments copy none."""
        self.modalities[MASK] = self.mask
        self.final_modalities[MASK] = self.final_mask

    def view(self, rows: slice) -> "SharedBuffers":
        """The buffers of some rows, in the same memory."""
        return SharedBuffers(**index_obs(vars(self), rows))


class Stepper:
    """Steps some environments, row -> environment; where an episode was `lost`, row -> seed, one with it follows."""

    def __init__(
        self,
        envs: Mapping[int, gym.Env],
        slots: SharedBuffers,
        shares: Sequence[slice],
        lost: Mapping[int, int] | None = None,
    ) -> None:
        # The row that is worked on, from which an error comes.
        self.row = min(envs)
        self._first_row = self.row
        self._envs = envs
        self._slots = slots
        self._shares = shares
        # For each group its rows with their `step`, looked up once.
        self._steps = []
        for share in shares:
            rows = range(*share.indices(len(slots.reward)))
            self._steps.append([(row, envs[row].step) for row in rows])
        self._ended = [True] * len(shares)
        self._has_flat_obs = not isinstance(slots.obs, Mapping)
        # Row -> seed, first observation and info of the episode that follows the lost one.
        self._lost: dict[int, tuple[int, Obs, Info]] = {}
        for self.row, seed in (lost or {}).items():
            self._begin_after_loss(self.row, seed)

    def step(self, group: int) -> bool:
        """Step the environments of a group; returns whether an episode ended."""
        # Attributes are looked up once, as this loop runs for every step of every environment.
        slots = self._slots
        share = self._shares[group]
        has_flat_obs = self._has_flat_obs
        obs = slots.obs
        rewards = slots.reward
        modalities = slots.modalities
        if self._ended[group]:
            slots.terminated[share] = False
            slots.truncated[share] = False
            slots.lost[share] = False
        ended = False
        lost = self._lost
        turn = slots.turn
        first_row = self._first_row
        # Numbers as Python's own, which simulators compare fastest; arrays as rows of a copy that
        # is never overwritten.
        actions = slots.action[share]
        rows: list[Any] = actions.tolist() if actions.ndim == 1 else list(actions.copy())
        try:
            for (row, step), action in zip(self._steps[group], rows):
                if lost and row in lost:
                    self._end_lost(row)
                    ended = True
                    continue
                turn[first_row] = row
                value, rewards[row], terminated, truncated, info = step(action)
                if terminated or truncated:
                    ended = True
                    self._end(row, value, terminated, truncated, info)
                    value, info = self._envs[row].reset()
                if has_flat_obs:
                    obs[row] = value
                else:
                    put(obs, row, value)
                if modalities:
                    self._show(row, info)
        except Exception:
            self.row = row
            raise
        turn[first_row] = -1
        self._ended[group] = ended
        return ended

    def _begin_after_loss(self, row: int, seed: int) -> None:
        """The row has a new environment, whose first episode waits until the lost one has been returned as ended."""
        obs, info = self._envs[row].reset(seed=seed)
        self._look(row, info)
        self._lost[row] = (seed, obs, info)

    def _look(self, row: int, info: Info) -> None:
        """Whether an environment that begins or comes back masks its actions."""
        if MASK in info and MASK not in self._slots.modalities:
            self._slots.show_masks()
        self._slots.masked[row] = MASK in info

    def _end_lost(self, row: int) -> None:
        """The lost episode ends on the last observation known, and the new one begins."""
        slots = self._slots
        _, obs, info = self._lost.pop(row)
        slots.reward[row] = 0.0
        slots.terminated[row] = False
        slots.truncated[row] = True
        slots.lost[row] = True
        last_obs = index_obs(slots.obs, row)
        put(slots.final_obs, row, last_obs)
        slots.success[row] = 0
        put(slots.final_modalities, row, index_obs(slots.modalities, row))
        put(slots.obs, row, obs)
        self._show(row, info)

    def _end(self, row: int, obs: Obs, terminated: bool, truncated: bool, info: Info) -> None:
        slots = self._slots
        slots.terminated[row] = terminated
        slots.truncated[row] = truncated
        put(slots.final_obs, row, obs)
        episode = info["episode"]
        slots.episode_return[row] = episode["r"]
        slots.episode_length[row] = episode["l"]
        slots.success[row] = 1 + info["is_success"] if "is_success" in info else 0
        put(slots.final_modalities, row, info)

    def _show(self, row: int, info: Info) -> str | None:
        """Write the modalities of a row; returns the text, which shared memory cannot hold."""
        for name, value in self._slots.modalities.items():
            # A mask may be missing here; `_show_begun` refuses that once all rows are known.
            is_missing = name == MASK and name not in info
            value[row] = False if is_missing else info[name]
        return info.get("text")

    def ask(self, method: str, arguments: Arguments) -> dict[int, Any]:
        """Do a method for some rows; returns row -> what it gave back."""
        results = {}
        for self.row, values in arguments.items():
            self._slots.turn[self._first_row] = self.row
            results[self.row] = getattr(self, method)(self.row, *values)
        self._slots.turn[self._first_row] = -1
        return results

    def reset(self, row: int, seed: int | None, options: Options | None) -> str | None:
        """Begin an episode; returns the text, which shared memory cannot hold."""
        self._lost.pop(row, None)
        obs, info = self._envs[row].reset(seed=seed, options=options)
        return self._begin(row, obs, info)

    def restore(self, row: int, state: StateDict) -> str | None:
        self._lost.pop(row, None)
        if "lost" in state:
            self._begin_after_loss(row, state["lost"])
            text = self._slots.modalities.get("text")
            return None if text is None else text[row]
        obs, info = self._envs[row].get_wrapper_attr("restore")(state)
        return self._begin(row, obs, info)

    def _begin(self, row: int, obs: Obs, info: Info) -> str | None:
        put(self._slots.obs, row, obs)
        self._look(row, info)
        return self._show(row, info)

    def call(self, row: int, name: str, args: tuple[Any, ...], kwargs: Options) -> Any:
        """What the environment's method `name` returns, or its attribute of that name."""
        # Where the agent has not seen a loss yet, the snapshot says so with the seed of what
        # follows.
        if name == "snapshot" and row in self._lost:
            seed, _, _ = self._lost[row]
            return {"lost": seed}
        attribute = self._envs[row].get_wrapper_attr(name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def assign(self, row: int, name: str, value: Any) -> None:
        setattr(self._envs[row], name, value)

    def has_wrapper(self, row: int, kind: type) -> bool:
        return bool(layers(self._envs[row], kind))

    def close(self) -> None:
        for env in self._envs.values():
            env.close()


class BufferedVectorEnv(VectorEnv):
    """What `InProcess` and `Workers` have in common; they differ in `_ask`, `_start` and `_wait`."""

    groups: tuple[slice, ...]

    def _describe(self, env: gym.Env, n: int, groups: tuple[slice, ...], slots: SharedBuffers) -> None:
        self.num_envs = n
        self.groups = groups
        self.spec = env.spec
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = env.render_mode
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(env.observation_space, n)
        self.action_space = batch_space(env.action_space, n)
        self._slots = slots
        self._views = list(map(slots.view, groups)) if len(groups) > 1 else [slots]
        self._sent: deque[int] = deque()
        # Whether it was reset or restored.
        self.has_reset = False

    @abstractmethod
    def _ask(self, method: str, arguments: Arguments) -> dict[int, Any]:
        """Have the environments of some rows do a `Stepper`'s method."""

    @abstractmethod
    def _start(self, group: int) -> None:
        """The actions of a group are in its buffers."""

    @abstractmethod
    def _wait(self, group: int) -> bool:
        """Fill the buffers of a group; returns whether an episode ended."""

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: Options | None = None) -> EnvReset:
        """Begin episodes everywhere, or in `options["reset_mask"]`; seeded with `seed + i`, or with a list."""
        n = self.num_envs
        if seed is None:
            seed = [None] * n
        elif isinstance(seed, int | np.integer):
            seed = [seed + i for i in range(n)]
        seeds = list(seed)
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(n, bool)), bool)
        if len(seeds) != n or mask.shape != (n,):
            raise ValueError(f"{len(seeds)} seeds and a reset_mask of shape {mask.shape} do not fit {n} environments")
        arguments = {}
        for row in np.flatnonzero(mask).tolist():
            arguments[row] = (seeds[row], options or None)
        texts = self.ask("reset", arguments)
        self._show_begun(texts)
        return self._slots.obs, self._infos(self._slots, False)

    def send(self, actions: Any, group: int = 0) -> None:
        """Hand a group its actions, (group's length, *action_shape); workers begin to step at once."""
        if self.closed:
            raise RuntimeError("these environments are closed; make new ones")
        if group in self._sent:
            raise RuntimeError(f"group {group} has its actions already; call recv({group}) first")
        slots = self._views[group].action
        actions = np.asarray(actions)
        if actions.shape != slots.shape:
            raise ValueError(f"actions of shape {actions.shape} do not fit; give {slots.shape}")
        slots[...] = actions
        self._start(group)
        self._sent.append(group)

    def recv(self, group: int = 0) -> VectorStep:
        """What `step` returns, for the rows of one group; groups come back in the order they were sent."""
        return self._result(self._views[group], self._finish(group))

    def step(self, actions: Any) -> VectorStep:
        if len(self.groups) == 1:
            self.send(actions)
            return self.recv()
        for group, rows in enumerate(self.groups):
            self.send(actions[rows], group)
        return self.recv_all()

    def recv_all(self) -> VectorStep:
        """What `step` returns, once all groups have their actions."""
        ended = list(map(self._finish, range(len(self.groups))))
        return self._result(self._slots, any(ended))

    def _show_begun(self, texts: Mapping[int, str | None]) -> None:
        """Show the texts of rows that were reset or restored, and masks from the first one on."""
        self.has_reset = True
        masked = self._slots.masked
        if "text" in self._slots.modalities:
            for row, text in texts.items():
                self._slots.modalities["text"][row] = text
        if not masked.any():
            return
        if not masked.all():
            raise MaskFault(
                f"environment {int(masked.argmax())} masks its actions and environment {int(masked.argmin())} does "
                f'not; give info["{MASK}"] in all of a vector, or in none'
            )
        self._slots.show_masks()
        for view in self._views:
            view.show_masks()

    def snapshot(self) -> StateDict:
        """Plain data from which `restore` brings these or fresh environments to this state."""
        return {"envs": list(self.call("snapshot"))}

    def restore(self, state: Mapping[str, Any]) -> Obs:
        """Come back to a snapshot, by playing each running episode again; returns the observations of that moment."""
        if len(state["envs"]) != self.num_envs:
            raise ValueError(f"the snapshot is of {len(state['envs'])} environments, not of {self.num_envs}")
        texts = self.ask("restore", {row: (saved,) for row, saved in enumerate(state["envs"])})
        self._show_begun(texts)
        return self._slots.obs

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What each environment's method `name` returns, or its attribute of that name."""
        results = self.ask("call", dict.fromkeys(range(self.num_envs), (name, args, kwargs)))
        return tuple(results[row] for row in range(self.num_envs))

    def ask(self, method: str, arguments: Arguments) -> dict[int, Any]:
        """Have some rows do a method of `Stepper`: row -> its arguments; returns row -> what it gave back."""
        if self.closed:
            raise RuntimeError("these environments are closed; make new ones")
        if self._sent:
            raise RuntimeError(f"group {self._sent[0]} is stepping; call recv({self._sent[0]}) before {method}()")
        return self._ask(method, arguments)

    get_attr = call

    def _finish(self, group: int) -> bool:
        if not self._sent or self._sent[0] != group:
            waiting = f"the next is group {self._sent[0]}" if self._sent else "none has been sent"
            raise RuntimeError(f"recv({group}) has nothing to wait for: {waiting}")
        self._sent.popleft()
        return self._wait(group)

    def _result(self, slots: SharedBuffers, ended: bool) -> VectorStep:
        return slots.obs, slots.reward, slots.terminated, slots.truncated, self._infos(slots, ended)

    def _infos(self, slots: SharedBuffers, ended: bool) -> Info:
        infos: Info = dict(slots.modalities)
        if not ended:
            return infos
        mask = slots.terminated | slots.truncated
        final: Info = dict(slots.final_modalities)
        counted = mask
        if slots.lost.any():
            infos["lost"] = slots.lost
            # Episodes that were lost have no return.
            counted = mask & ~slots.lost
        final["episode"] = {"r": slots.episode_return, "l": slots.episode_length, "_r": counted, "_l": counted}
        final["_episode"] = counted
        if slots.success.any():
            final["is_success"] = slots.success == 2
            final["_is_success"] = counted & (slots.success > 0)
        infos["final_obs"] = slots.final_obs
        infos["_final_obs"] = mask
        infos["final_info"] = final
        infos["_final_info"] = mask
        return infos


class InProcess(BufferedVectorEnv):
    """Steps environments, each made as by `envs.make.make`, one after the other in this process; one group."""

    def __init__(self, makers: Sequence[Maker]) -> None:
        if not makers:
            raise ValueError("no environments make no vector; give at least one maker")
        n = len(makers)
        groups = (slice(0, n),)
        # `close` needs this, should making an environment fail.
        self.envs: list[gym.Env] = []
        with all_or_none(makers) as makers:
            envs = [make() for make in makers]
            self._describe(envs[0], n, groups, SharedBuffers.like(envs[0], n, np.zeros))
            for row, env in enumerate(envs):
                check_alike(row, env, (self.single_observation_space, self.single_action_space))
        self.envs = envs
        self._stepper = Stepper(dict(enumerate(self.envs)), self._slots, groups)

    def _ask(self, method: str, arguments: Arguments) -> dict[int, Any]:
        return self._with_row(self._stepper.ask, method, arguments)

    def _start(self, group: int) -> None:
        """`_wait` does the work."""

    def _wait(self, group: int) -> bool:
        return self._with_row(self._stepper.step, group)

    def _with_row(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do some work; what is wrong with a mask is reported with the environment's number."""
        try:
            return work(*arguments)
        except MaskFault as fault:
            raise MaskFault(f"environment {self._stepper.row}: {fault}") from None

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()
