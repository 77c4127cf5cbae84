"""The environments of a run, in actors on a Ray cluster; and what goes back and forth between them and the learner.

    request   weights, put into Ray's memory once, and a rollout from every actor
    gather    the oldest rollout in flight of every actor, as they come

An update learns from one rollout of each actor, side by side: an actor's environments are the same columns of every
rollout. With `lag` = 1 a second one is in flight while the learner learns from the first, so each is of the policy one
update before; there are never more. An actor that is lost is replaced: its rollouts in flight are dropped whole and
asked for again, and the next one begins with rows that are no transitions, in which the episodes are lost.
"""

import copy
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.make import make as make_env
from envs.transitions import join
from envs.types import MaskFault, Obs
from envs.vector.watchdog import WorkerError
from rewards.adapters.ending import endings
from rewards.adapters.guided import guides
from runners.cluster.actor import Actor, Outline
from runners.cluster.collector import FleetCollector
from runners.cluster.connect import connect, differs, first_line, load, misfit
from runners.cluster.server import seeing
from runners.cluster.servers import Asked, Servers
from runners.run.checkpoint import versions
from runners.run.config import TrainConfig, UsageError

PATIENCE_S = 60.0  # of the learner without any rollout, before it says what it waits for
GIVE_UP = 3  # losses of one actor in a row, without a rollout between them


@dataclass
class Flight:
    """A rollout that was asked for."""

    number: int
    part: Any  # a reference, or what it became
    asked: Asked | None = None  # what a server makes of its frames

    @property
    def ref(self) -> Any:
        """What to wait for; None if the rollout is here."""
        return None if isinstance(self.part, dict) else self.asked.found if self.asked else self.part


@dataclass
class Member:
    """An actor, as the learner knows it."""

    number: int
    columns: slice
    handle: Any = None
    pid: int = 0
    generation: int = 0  # how often it was replaced
    lost_in_row: int = 0
    flight: deque[Flight] = field(default_factory=deque)
    taken: int = -1  # number of the last rollout that was learnt from

    @property
    def name(self) -> str:
        return f"actor {self.number}, with the environments {self.columns.start} to {self.columns.stop - 1},"


class Fleet(VectorEnv):
    """Stands for the environments in the learner's process; a collector of its own steps them, rollouts at a time."""

    collector = FleetCollector
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(
        self,
        ray: Any,
        config: TrainConfig,
        n: int,
        mix: Any,
        spaces: tuple[gym.Space, gym.Space],
        servers: Servers | None = None,
    ) -> None:
        self._ray, self.lag = ray, config.lag
        self._config = copy.copy(config)
        self._config.reward = {}  # its options are for the learner alone
        self.num_envs = n
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space, self.action_space = (batch_space(space, n) for space in spaces)
        self.has_reset = False
        self.holds = self.lag == 0  # whether a snapshot costs no waiting
        self.restarts = self.delivered = self.dropped = 0  # actors replaced; rollouts that came, and that never will
        # Called with a sentence about each replacement.
        self.say: Callable[[str], object] = lambda sentence: warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        self.seconds: dict[str, float] = {}  # where the learner's time went, by its collector
        self._measured: tuple[float, dict[str, float]] = (time.perf_counter(), {})
        self.servers = servers
        self._outline = Outline(mix, bool(servers))
        self._remote = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Actor)
        self._issued = self._version = self._gap = 0
        self._weights: Any = None
        self._arguments: tuple[Any, ...] = ()
        self._entropy = 0
        self._restoring: Mapping[str, Any] | None = None
        cuts = [len(part) for part in np.array_split(np.arange(n), config.workers)]
        ends = np.cumsum(cuts).tolist()
        self.members = [Member(i, slice(end - cut, end)) for i, (cut, end) in enumerate(zip(cuts, ends))]
        for member in self.members:
            member.handle = self._remote.remote()
        for member, pid in zip(self.members, self._answers([self._make(member) for member in self.members])):
            member.pid = pid

    def _make(self, member: Member) -> Any:
        return member.handle.make.remote(self._config, member.columns, self._outline, member.generation)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Obs, dict[str, Any]]:
        """Begin episodes everywhere, number i seeded with `seed + i`; rollouts in flight are forgotten."""
        for member in self.members:
            member.flight.clear()
            member.taken = self._issued - 1
        begun = self._answers([member.handle.begin.remote(seed + member.columns.start) for member in self.members])
        self.has_reset, self._restoring = True, None
        obs, shown = zip(*begun)
        infos = join(np.concatenate, list(shown))
        if self.servers:
            infos["embedded"] = self.servers.answer(self.servers.ask(infos.pop("frame")))
        return join(np.concatenate, list(obs)), infos

    def step(self, actions: Any) -> Any:
        raise RuntimeError("these environments step in actors, rollouts at a time; an agent's collector asks for them")

    def request(self, weights: dict[str, np.ndarray], whole: bool) -> None:
        """Ask every actor for rollouts by the policy of these weights, until `lag` + 1 are in flight."""
        self._version += 1
        self._weights = self._ray.put({"version": self._version, "policy": weights})
        self._arguments = (self._weights, whole)
        while min(len(member.flight) for member in self.members) <= self.lag:
            for member in self.members:
                member.flight.append(self._collect(member, self._issued))
            self._issued += 1

    def _collect(self, member: Member, number: int) -> Flight:
        if not self.servers:
            return Flight(number, member.handle.collect.remote(number, *self._arguments))
        part, frames = member.handle.collect.options(num_returns=2).remote(number, *self._arguments)
        return Flight(number, part, self.servers.ask(frames))

    def gather(self) -> Iterator[tuple[slice, dict[str, Any]]]:
        """The oldest rollout in flight of every actor with its columns, each exactly once, as they come."""
        self._gap, heard = 0, time.monotonic()
        waiting = {member.flight[0].ref: member for member in self.members if member.flight[0].ref is not None}
        for member in self.members:
            if member.flight[0].ref is None:  # from a checkpoint, or fetched for one
                yield self._account(member)
        while waiting:
            ready, _ = self._ray.wait([*waiting], num_returns=1, timeout=PATIENCE_S)
            if not ready and time.monotonic() - heard > PATIENCE_S:
                heard = time.monotonic()
                self.say(f"waiting for {len(waiting)} of {len(self.members)} actors; the cluster may lack free CPUs")
            for ref in ready:
                member, heard = waiting.pop(ref), time.monotonic()
                if self._fetch(member, member.flight[0]):
                    yield self._account(member)
                else:
                    waiting[member.flight[0].ref] = member

    def _fetch(self, member: Member, flight: Flight) -> bool:
        """Bring a rollout here, with what servers saw in its frames; False if it is lost and was asked for again."""
        part = self._answer(member, flight.part)
        if part is None:
            return False
        if flight.asked is not None:
            assert self.servers is not None
            restarts = self.servers.restarts
            try:
                part["embedded"] = self.servers.answer(flight.asked)
            except self._ray.exceptions.RayError as error:
                self._replace(member, first_line(error))
                return False
            if self.servers.restarts > restarts:
                self.restarts += 1
                self.say(f"reward server {flight.asked.server} was lost and is replaced; it sees the same frames again")
        flight.part = part
        return True

    def _account(self, member: Member) -> tuple[slice, dict[str, Any]]:
        """Refuse a rollout that is not the next one of its actor: none is learnt from twice, and none is left out."""
        flight = member.flight.popleft()
        part = flight.part
        if part["number"] != flight.number or flight.number != member.taken + 1:
            raise RuntimeError(f"{member.name} gave rollout {part['number']} where {member.taken + 1} was due")
        member.taken, member.lost_in_row = flight.number, 0
        self.delivered += 1
        self._gap = max(self._gap, self._version - part["version"])
        return member.columns, part

    def _answers(self, refs: list[Any]) -> list[Any]:
        """What all actors answer, in their order; of one that is lost meanwhile, what its successor begins with."""
        return [self._answer(member, ref, True) for member, ref in zip(self.members, refs)]

    def _answer(self, member: Member, ref: Any, begins: bool = False) -> Any:
        """An actor's answer. If it is lost it is replaced, and the answer is None, or what its successor begins with.

        An environment's error is a WorkerError.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, MaskFault | ImportError) or (isinstance(cause, ValueError) and not self.has_reset):
                raise cause from None
            failed = WorkerError(f"{member.name} raised {type(cause).__name__}: {cause}")
            failed.add_note(f"The traceback in the actor:\n{error}")
            raise failed from None
        except errors.RayError as error:
            begun = self._replace(member, first_line(error))
            return begun if begins else None

    def _replace(self, member: Member, why: str) -> Any:
        """A new actor for these columns, which is asked for the rollouts that were in flight; what it begins with."""
        member.lost_in_row += 1
        if member.lost_in_row >= GIVE_UP:
            raise WorkerError(f"{member.name} was lost {GIVE_UP} times in a row without a rollout ({why})")
        self.restarts += 1
        member.generation += 1
        with suppress(Exception):
            self._ray.kill(member.handle)
        again = [flight.number for flight in member.flight if flight.ref is not None]
        self.dropped += len(again)
        self.say(f"{member.name} was lost ({why}); {len(again)} rollouts are dropped, its episodes end, it is replaced")
        member.handle = self._remote.remote()
        if isinstance(pid := self._answer(member, self._make(member), True), int):
            member.pid = pid
        begun = self._answer(member, member.handle.begin.remote(self._new_seed(member), True), True)
        for place, flight in enumerate(member.flight):
            if flight.ref is not None:
                member.flight[place] = self._collect(member, flight.number)
        return begun

    def _new_seed(self, member: Member) -> int:
        """Of the first episodes after a loss: another one each time."""
        words = [self._config.seed, member.columns.start, member.generation, self._entropy]
        return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1

    def snapshot(self) -> dict[str, Any]:
        """What `restore` continues from; rollouts in flight are waited for, and learnt from later all the same."""
        for member in self.members:
            for place in range(len(member.flight)):
                while member.flight[place].ref is not None:
                    self._fetch(member, member.flight[place])
        states = self._answers([member.handle.snapshot.remote() for member in self.members])
        if any(isinstance(state, tuple) for state in states):  # lost while it was idle: its episodes are, too
            return {"parts": []}
        envs = [state["envs"] for state in states]
        more: dict[str, Any] = {}
        if any(member.flight for member in self.members):  # the actors are ahead of the learner
            more["pending"] = [[flight.part for flight in member.flight] for member in self.members]
            more["standing"] = [state["standing"] for state in states]
        if all(set(one) == {"envs"} for one in envs):
            return {"envs": [row for one in envs for row in one["envs"]], **more}
        return {**envs[0], **more} if len(envs) == 1 else {"parts": envs, **more}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a snapshot, or from one of a local run, once the collector is where it was."""
        self._restoring, self.has_reset = state, True

    def settle(self, collector: FleetCollector) -> None:
        """After `restore`: bring the actors to where they were; what cannot be divided among them is lost."""
        self._entropy = collector.rng.bit_generator.state["state"]["state"]  # type: ignore[call-overload, index]
        if self._restoring is None:
            return
        state, self._restoring = dict(self._restoring), None
        count = len(self.members)
        pending, standing = state.pop("pending", [[]] * count), state.pop("standing", None)
        parts = self._cut(state)
        whole = parts is not None and len(pending) == count
        begun = []
        for number, member in enumerate(self.members):
            member.flight.clear()
            member.taken = self._issued - 1
            if whole:
                assert parts is not None
                for place, part in enumerate(pending[number], self._issued):
                    member.flight.append(Flight(place, {**part, "number": place, "version": self._version}))
                last = standing[number] if standing else collector.standing(member.columns, number)
                begun.append(member.handle.restore.remote(last, parts[number]))
            else:
                begun.append(member.handle.begin.remote(self._new_seed(member), True))
        self._issued += len(self.members[0].flight)
        self._answers(begun)
        if not whole:
            self.say("the saved episodes do not divide among these actors: they are lost, and new ones begin")

    def _cut(self, state: Mapping[str, Any]) -> list[Any] | None:
        """The snapshot of each member, or None where they do not divide so."""
        if set(state) == {"envs"}:
            return [{"envs": list(state["envs"])[member.columns]} for member in self.members]
        parts = state.get("parts", [state])
        return list(parts) if len(parts) == len(self.members) else None

    def measured(self) -> dict[str, float]:
        """Tags since the last call: shares of the wall's time by what it went to, and the policy's lag in updates."""
        (then, before), now = self._measured, time.perf_counter()
        self._measured = now, dict(self.seconds)
        shares = {
            f"time/{name}": (total - before.get(name, 0.0)) / (now - then) for name, total in self.seconds.items()
        }
        return {**shares, "time/lag": float(self._gap)}

    def close_extras(self, **kwargs: Any) -> None:
        for member in self.members:
            with suppress(Exception):
                self._ray.kill(member.handle)
        if self.servers:
            self.servers.close()


@contextmanager
def cluster(config: TrainConfig) -> Iterator[Callable[..., Fleet]]:
    """Join the cluster, or start one; what makes the environments of a run there, in the place of `make_envs`."""
    ray = load()
    joined = not ray.is_initialized()
    if joined:
        connect(ray, config.cluster, "cluster", "leave cluster= out")
    made: list[Fleet] = []

    def make(config: TrainConfig, driver: str, n: int, mix: Any, crashes: Any = None) -> Fleet:
        refuse(ray, config, n, mix)
        with closing(make_env(config.env, max_episode_steps=config.max_episode_steps, **config.env_options)) as one:
            spaces = one.observation_space, one.action_space
        gpus = ray.cluster_resources().get("GPU", 0) if config.device != "cpu" else 0
        servers = Servers(ray, config, spaces, "cuda" if gpus else "cpu") if config.servers else None
        made.append(Fleet(ray, config, n, mix, spaces, servers))
        return made[0]

    try:
        yield make
    finally:
        for fleet in made:
            fleet.close()
        if joined:
            with suppress(Exception):
                ray.shutdown()


def refuse(ray: Any, config: TrainConfig, n: int, mix: Any) -> None:
    """A UsageError for what a cluster cannot run, or this one cannot, before anything starts."""
    resources, processes = ray.cluster_resources(), config.workers + config.servers
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    frames = seeing(mix) if config.servers else {}
    itself = next((name for name, one in frames.items() if one.embedding is None or one.keeps_frames), "")
    staying = next(iter({**guides(mix), **endings(mix)}), "")
    for wrong, sentence in (
        (
            staying,
            f"the reward {staying} acts inside the environments, which are in other processes with cluster="
            f"{config.cluster}, and may not leave the learner; leave it or cluster= out",
        ),
        (
            config.lag and config.agent.gru,
            f"agent.gru={config.agent.gru} remembers by weights that lag={config.lag} replaces meanwhile; give lag=0",
        ),
        (config.agent.overlap, "agent.overlap collects in this process what actors collect; give lag=1 in its place"),
        (
            config.workers > n,
            f"workers={config.workers} actors cannot share n_envs={n} environments; give n_envs={config.workers}",
        ),
        (
            processes > cpus,
            f"workers={config.workers} and servers={config.servers} are more than the cluster has CPUs ({cpus}); "
            "give fewer, or add a node",
        ),
        (
            config.servers and not frames,
            f"servers={config.servers} embed frames, and no reward here reads any; leave it out",
        ),
        (itself, f"the reward {itself} needs the frames themselves, which may not leave the learner; give servers=0"),
        (
            config.servers > gpus and config.device.startswith("cuda"),
            f"servers={config.servers} on device={config.device} are more than the cluster has GPUs ({gpus}); give "
            "device=cpu, or add a node",
        ),
    ):
        if wrong:
            raise UsageError(sentence)
    if sentence := misfit(ray, differs, versions()):
        raise UsageError(sentence)
