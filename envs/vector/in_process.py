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
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.masks import sizes
from envs.observations import empty_batch, empty_modalities
from envs.transitions import map_obs, put
from envs.types import MASK, MaskFault, Obs
from envs.wrappers import Observer, layers

Maker = Callable[[], gym.Env]
New = Callable[[tuple[int, ...], Any], np.ndarray]  # (shape, dtype) -> an array of zeros
Result = tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


@contextmanager
def all_or_none(makers: Sequence[Maker]) -> Iterator[list[Maker]]:
    """The makers; what they have made is closed if the block around its vector fails, as no vector does by itself."""
    made: list[gym.Env] = []

    def keep(make: Maker) -> gym.Env:
        made.append(make())
        return made[-1]

    try:
        yield [functools.partial(keep, make) for make in makers]
    except BaseException:
        for env in made:
            env.close()
        raise


def check_alike(row: int, env: gym.Env, spaces: tuple[gym.Space, gym.Space]) -> None:
    """A ValueError if an environment's observation or action space is not that of its vector."""
    for name, own, wanted in zip(("observation", "action"), (env.observation_space, env.action_space), spaces):
        if own != wanted:
            raise ValueError(f"environment {row} has the {name} space {own}, the first one {wanted}; make them alike")


@dataclass(frozen=True, eq=False)
class SharedBuffers:
    """What goes in and out of N environments in one step, one row each."""

    obs: Obs  # (N, *obs_shape)
    action: np.ndarray  # (N, *action_shape)
    reward: np.ndarray  # float32 (N,)
    terminated: np.ndarray  # bool (N,)
    truncated: np.ndarray  # bool (N,)
    final_obs: Obs  # (N, *obs_shape); this and the rest are of the last episode that ended in the row
    episode_return: np.ndarray  # float64 (N,)
    episode_length: np.ndarray  # int64 (N,)
    success: np.ndarray  # int8 (N,): 0 where not defined, 1 failed, 2 succeeded
    lost: np.ndarray  # bool (N,): the episode was lost with its worker
    turn: np.ndarray  # int64 (N,): in the first row of each stepper, the row it works on; -1 between two steps
    modalities: dict[str, np.ndarray]  # frame uint8 (N, H, W, 3), signals float32 (N, K), text object (N,), which is
    final_modalities: dict[str, np.ndarray]  # never in shared memory
    masked: np.ndarray  # bool (N,): the environment masks its actions
    masks: tuple[dict[str, np.ndarray], ...]  # bool (N, A): what `show_masks` adds to both modalities

    @classmethod
    def like(cls, env: gym.Env, n: int, new: New) -> "SharedBuffers":
        """Buffers for `n` environments like `env`, their arrays made by `new`, always in the same order."""
        shown = layers(env, Observer)

        def modalities() -> dict[str, np.ndarray]:
            if not shown:
                return {}
            return empty_modalities(n, shown[0].frame_size, shown[0].caption is not None, len(shown[0].signals), new)

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
            masks=tuple({MASK: new((n, sum(sizes(env.action_space)) or 1), bool)} for _ in range(2)),
        )

    def show_masks(self) -> None:
        """From the first mask on they are among the modalities; whoever never gives one copies none."""
        self.modalities.update(self.masks[0])
        self.final_modalities.update(self.masks[1])

    def view(self, rows: slice) -> "SharedBuffers":
        parts = {f.name: map_obs(lambda x: x[rows], getattr(self, f.name)) for f in fields(self) if f.name != "masks"}
        return SharedBuffers(**parts, masks=tuple(map_obs(lambda x: x[rows], one) for one in self.masks))


class Stepper:
    """Steps some environments, row -> environment; where an episode was `lost`, row -> seed, one with it follows."""

    def __init__(
        self,
        envs: Mapping[int, gym.Env],
        slots: SharedBuffers,
        shares: Sequence[slice],
        lost: Mapping[int, int] | None = None,
    ) -> None:
        self.row = min(envs)  # the one that works; where an error comes from
        self._me = self.row
        self._envs = envs
        self._slots = slots
        self._shares = shares
        n = len(slots.reward)
        self._steps = [[(row, envs[row].step) for row in range(*share.indices(n))] for share in shares]
        self._ended = [True for _ in shares]
        self._flat = not isinstance(slots.obs, Mapping)
        self._lost: dict[int, tuple[int, Obs, dict[str, Any]]] = {}
        for self.row, seed in (lost or {}).items():
            self._begin_anew(self.row, seed)

    def step(self, group: int) -> bool:
        """Step the environments of a group; returns whether an episode ended."""
        slots, share, flat = self._slots, self._shares[group], self._flat
        obs, rewards, modalities = slots.obs, slots.reward, slots.modalities
        if self._ended[group]:
            slots.terminated[share] = slots.truncated[share] = slots.lost[share] = False
        ended = False
        lost, turn, me = self._lost, slots.turn, self._me
        actions = slots.action[share]
        # Numbers as Python's own, which simulators compare fastest; arrays as rows of a copy that is never overwritten.
        rows: list[Any] = actions.tolist() if actions.ndim == 1 else list(actions.copy())
        try:
            for (row, step), action in zip(self._steps[group], rows):
                if lost and row in lost:
                    self._end_lost(row)
                    ended = True
                    continue
                turn[me] = row
                value, rewards[row], terminated, truncated, info = step(action)
                if terminated or truncated:
                    ended = True
                    self._end(row, value, terminated, truncated, info)
                    value, info = self._envs[row].reset()
                if flat:
                    obs[row] = value
                else:
                    put(obs, row, value)
                if modalities:
                    self._show(row, info)
        except Exception:
            self.row = row
            raise
        turn[me] = -1
        self._ended[group] = ended
        return ended

    def _begin_anew(self, row: int, seed: int) -> None:
        """The row has a new environment, whose first episode waits until the lost one has been returned as ended."""
        obs, info = self._envs[row].reset(seed=seed)
        self._look(row, info)
        self._lost[row] = (seed, obs, info)

    def _look(self, row: int, info: dict[str, Any]) -> None:
        """Whether an environment that begins or comes back masks its actions."""
        if MASK in info and MASK not in self._slots.modalities:
            self._slots.show_masks()
        self._slots.masked[row] = MASK in info

    def _end_lost(self, row: int) -> None:
        """The lost episode ends on the last observation known, and the new one begins."""
        slots = self._slots
        _, obs, info = self._lost.pop(row)
        slots.reward[row], slots.terminated[row], slots.truncated[row], slots.lost[row] = 0.0, False, True, True
        put(slots.final_obs, row, map_obs(lambda x: x[row], slots.obs))
        slots.success[row] = 0
        for name, value in slots.modalities.items():
            slots.final_modalities[name][row] = value[row]
        put(slots.obs, row, obs)
        self._show(row, info)

    def _end(self, row: int, obs: Obs, terminated: bool, truncated: bool, info: dict[str, Any]) -> None:
        slots = self._slots
        slots.terminated[row], slots.truncated[row] = terminated, truncated
        put(slots.final_obs, row, obs)
        slots.episode_return[row], slots.episode_length[row] = info["episode"]["r"], info["episode"]["l"]
        slots.success[row] = 1 + info["is_success"] if "is_success" in info else 0
        for name, value in slots.final_modalities.items():
            value[row] = info[name]

    def _show(self, row: int, info: dict[str, Any]) -> str | None:
        for name, value in self._slots.modalities.items():
            value[row] = info[name] if name in info or name != MASK else False  # refused once all are known
        return info.get("text")

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        results = {}
        for self.row, values in arguments.items():
            self._slots.turn[self._me] = self.row
            results[self.row] = getattr(self, method)(self.row, *values)
        self._slots.turn[self._me] = -1
        return results

    def reset(self, row: int, seed: int | None, options: dict[str, Any] | None) -> str | None:
        """Begin an episode; returns the text, which shared memory cannot hold."""
        self._lost.pop(row, None)
        return self._begun(row, *self._envs[row].reset(seed=seed, options=options))

    def restore(self, row: int, state: dict[str, Any]) -> str | None:
        self._lost.pop(row, None)
        if "lost" in state:
            self._begin_anew(row, state["lost"])
            return self._slots.modalities["text"][row] if "text" in self._slots.modalities else None
        return self._begun(row, *self._envs[row].get_wrapper_attr("restore")(state))

    def _begun(self, row: int, obs: Obs, info: dict[str, Any]) -> str | None:
        put(self._slots.obs, row, obs)
        self._look(row, info)
        return self._show(row, info)

    def call(self, row: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the environment's method `name` returns, or its attribute of that name."""
        if name == "snapshot" and row in self._lost:  # the agent has not seen the loss yet
            return {"lost": self._lost[row][0]}
        found = self._envs[row].get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def assign(self, row: int, name: str, value: Any) -> None:
        setattr(self._envs[row], name, value)

    def wrapped(self, row: int, kind: type) -> bool:
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
        self._views = [slots.view(rows) for rows in groups] if len(groups) > 1 else [slots]
        self._sent: deque[int] = deque()
        self.has_reset = False  # or was restored

    @abstractmethod
    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Have the environments of some rows do a `Stepper`'s method."""

    @abstractmethod
    def _start(self, group: int) -> None:
        """The actions of a group are in its buffers."""

    @abstractmethod
    def _wait(self, group: int) -> bool:
        """Fill the buffers of a group; returns whether an episode ended."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Begin episodes everywhere, or in `options["reset_mask"]`; seeded with `seed + i`, or with a list."""
        n = self.num_envs
        if seed is None or isinstance(seed, int | np.integer):
            seed = [None if seed is None else seed + i for i in range(n)]
        seeds = list(seed)
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(n, bool)), bool)
        if len(seeds) != n or mask.shape != (n,):
            raise ValueError(f"{len(seeds)} seeds and a reset_mask of shape {mask.shape} do not fit {n} environments")
        rows = np.flatnonzero(mask).tolist()
        self._begun(self.ask("reset", {row: (seeds[row], options or None) for row in rows}))
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

    def recv(self, group: int = 0) -> Result:
        """What `step` returns, for the rows of one group; groups come back in the order they were sent."""
        return self._result(self._views[group], self._finish(group))

    def step(self, actions: Any) -> Result:
        if len(self.groups) == 1:
            self.send(actions)
            return self.recv()
        for group, rows in enumerate(self.groups):
            self.send(actions[rows], group)
        return self.recv_all()

    def recv_all(self) -> Result:
        """What `step` returns, once all groups have their actions."""
        ended = [self._finish(group) for group in range(len(self.groups))]
        return self._result(self._slots, any(ended))

    def _begun(self, texts: Mapping[int, str | None]) -> None:
        """Show the texts of rows that were reset or restored, and masks from the first one on."""
        self.has_reset, masked = True, self._slots.masked
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
        for slots in {id(one): one for one in (self._slots, *self._views)}.values():
            slots.show_masks()

    def snapshot(self) -> dict[str, Any]:
        """Plain data from which `restore` brings these or fresh environments to this state."""
        return {"envs": list(self.call("snapshot"))}

    def restore(self, state: Mapping[str, Any]) -> Obs:
        """Come back to a snapshot, by playing each running episode again; returns the observations of that moment."""
        if len(state["envs"]) != self.num_envs:
            raise ValueError(f"the snapshot is of {len(state['envs'])} environments, not of {self.num_envs}")
        self._begun(self.ask("restore", {row: (one,) for row, one in enumerate(state["envs"])}))
        return self._slots.obs

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What each environment's method `name` returns, or its attribute of that name."""
        results = self.ask("call", {row: (name, args, kwargs) for row in range(self.num_envs)})
        return tuple(results[row] for row in range(self.num_envs))

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
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

    def _result(self, slots: SharedBuffers, ended: bool) -> Result:
        return slots.obs, slots.reward, slots.terminated, slots.truncated, self._infos(slots, ended)

    def _infos(self, slots: SharedBuffers, ended: bool) -> dict[str, Any]:
        infos: dict[str, Any] = dict(slots.modalities)
        if not ended:
            return infos
        mask = slots.terminated | slots.truncated
        final: dict[str, Any] = dict(slots.final_modalities)
        counted = mask
        if slots.lost.any():
            infos["lost"], counted = slots.lost, mask & ~slots.lost
        account = {"r": slots.episode_return, "l": slots.episode_length, "_r": counted, "_l": counted}
        final["episode"], final["_episode"] = account, counted
        if slots.success.any():
            final["is_success"], final["_is_success"] = slots.success == 2, counted & (slots.success > 0)
        infos["final_obs"], infos["_final_obs"] = slots.final_obs, mask
        infos["final_info"], infos["_final_info"] = final, mask
        return infos


class InProcess(BufferedVectorEnv):
    """Steps environments, each made as by `envs.make.make`, one after the other in this process; one group."""

    def __init__(self, makers: Sequence[Maker]) -> None:
        if not makers:
            raise ValueError("no environments make no vector; give at least one maker")
        n, everything = len(makers), (slice(0, len(makers)),)
        self.envs: list[gym.Env] = []
        with all_or_none(makers) as makers:
            envs = [make() for make in makers]
            self._describe(envs[0], n, everything, SharedBuffers.like(envs[0], n, np.zeros))
            for row, env in enumerate(envs):
                check_alike(row, env, (self.single_observation_space, self.single_action_space))
        self.envs = envs
        self._stepper = Stepper(dict(enumerate(self.envs)), self._slots, everything)

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        return self._named(self._stepper.ask, method, arguments)

    def _start(self, group: int) -> None:
        """`_wait` does the work."""

    def _wait(self, group: int) -> bool:
        return self._named(self._stepper.step, group)

    def _named(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        except MaskFault as fault:
            raise MaskFault(f"environment {self._stepper.row}: {fault}") from None

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()
