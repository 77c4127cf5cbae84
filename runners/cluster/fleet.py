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
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.make import make as make_env
from envs.transitions import NotFinite, join
from envs.types import MaskFault, Obs, StateDict
from envs.vector.watchdog import WorkerError
from rewards.adapters.ending import endings
from rewards.adapters.guided import guides
from runners.cluster.actor import Actor, Outline
from runners.cluster.collector import FleetCollector
from runners.cluster.connect import connect, first_line, load, misfit, other_versions_sentence
from runners.cluster.replay import FleetSteps, ReplayActor
from runners.cluster.server import frame_rewards
from runners.cluster.servers import Asked, Servers
from runners.run.checkpoint import versions
from runners.run.config import TrainConfig, UsageError

# Seconds of the learner without any rollout before it says what it waits for.
GATHER_PATIENCE_S = 60.0
# Losses of one actor in a row, without a rollout between them.
MAX_ACTOR_LOSSES = 3


@dataclass
class Flight:
    """A rollout that was asked for."""

    number: int
    # A reference, or what it became.
    part: Any
    # What a server makes of its frames.
    asked: Asked | None = None

    @property
    def ref(self) -> Any:
        """What to wait for; None if the rollout is here."""
        if isinstance(self.part, dict):
            return None
        if self.asked:
            return self.asked.embeddings
        return self.part


@dataclass
class Member:
    """An actor, as the learner knows it."""

    number: int
    columns: slice
    handle: Any = None
    pid: int = 0
    # How often it was replaced.
    generation: int = 0
    lost_in_row: int = 0
    flight: deque[Flight] = field(default_factory=deque)
    # Number of the last rollout that was learnt from.
    last_number: int = -1

    @property
    def name(self) -> str:
        return f"actor {self.number}, with the environments {self.columns.start} to {self.columns.stop - 1},"


class Fleet(VectorEnv):
    """Stands for the environments in the learner's process; `collector` and `steps` step them, rollouts at a time."""

    collector = FleetCollector
    steps = FleetSteps
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(
        self,
        ray: Any,
        config: TrainConfig,
        n: int,
        mix: Any,
        single: gym.Env,
        servers: Servers | None = None,
    ) -> None:
        self._ray = ray
        self.lag = config.lag
        # The options of rewards are for the learner alone.
        self._config = copy.copy(config)
        self._config.reward = {}
        self.num_envs = n
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        self.spec = single.spec
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(self.single_observation_space, n)
        self.action_space = batch_space(self.single_action_space, n)
        self.has_reset = False
        # Actors that were replaced, rollouts that came, and rollouts that never will.
        self.restarts = 0
        self.delivered = 0
        self.dropped = 0
        # Called with a sentence about each replacement.
        self.say: Callable[[str], object] = lambda sentence: warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        # Where the learner's time went, by its collector; and the clock and these seconds at the last `measured`.
        self.seconds: dict[str, float] = {}
        self._measured_at = time.perf_counter()
        self._measured_seconds: dict[str, float] = {}
        self.servers = servers
        self._outline = Outline(mix, bool(servers))
        actor_class = Actor if config.agent_name == "ppo" else ReplayActor
        self._remote = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(actor_class)
        # Rollouts that every actor was asked for; updates of the policy, and by how many the last rollout is older.
        self._issued = 0
        self._version = 0
        self._gap = 0
        # Weights, and what else `collect` of the actors takes.
        self._arguments: tuple[Any, ...] = ()
        self._entropy = 0
        # A snapshot from which actors continue before the next rollout.
        self._restoring: StateDict | None = None
        self.members = []
        for number, envs in enumerate(np.array_split(np.arange(n), config.workers)):
            columns = slice(int(envs[0]), int(envs[-1]) + 1)
            self.members.append(Member(number, columns, self._remote.remote()))
        pids = self._answers(self._make)
        for member, pid in zip(self.members, pids):
            member.pid = pid

    def _make(self, member: Member) -> Any:
        return member.handle.make.remote(self._config, member.columns, self._outline, member.generation)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Obs, StateDict]:
        """Begin episodes everywhere, number i seeded with `seed + i`; rollouts in flight are forgotten."""
        for member in self.members:
            self._forget_flight(member)
        begun = self._answers(lambda member: member.handle.begin.remote(seed + member.columns.start))
        self.has_reset = True
        self._restoring = None
        obs, infos_of_members = zip(*begun)
        infos = join(np.concatenate, list(infos_of_members))
        if self.servers:
            infos["embedded"] = self.servers.answer(self.servers.ask(infos.pop("frame")))
        return join(np.concatenate, list(obs)), infos

    def _forget_flight(self, member: Member) -> None:
        member.flight.clear()
        member.last_number = self._issued - 1

    def step(self, actions: Any) -> Any:
        raise RuntimeError("these environments step in actors, rollouts at a time; an agent's collector asks for them")

    def request(self, weights: StateDict, option: Any) -> None:
        """Ask every actor for rollouts by the policy of these weights, until `lag` + 1 are in flight.

        `option` is whether actors evaluate (PPO), or how many rows they collect (a replay).
        """
        self._version += 1
        self._arguments = (self._ray.put({"version": self._version, "policy": weights}), option)
        while min(len(member.flight) for member in self.members) <= self.lag:
            for member in self.members:
                member.flight.append(self._collect(member, self._issued))
            self._issued += 1

    def _collect(self, member: Member, number: int) -> Flight:
        if not self.servers:
            return Flight(number, member.handle.collect.remote(number, *self._arguments))
        part, frames = member.handle.collect.options(num_returns=2).remote(number, *self._arguments)
        return Flight(number, part, self.servers.ask(frames))

    def gather(self) -> Iterator[tuple[slice, StateDict]]:
        """The oldest rollout in flight of every actor with its columns, each exactly once, as they come."""
        self._gap = 0
        last_answer = time.monotonic()
        waiting = {}
        for member in self.members:
            ref = member.flight[0].ref
            if ref is not None:
                waiting[ref] = member
        for member in self.members:
            # It came from a checkpoint, or was fetched for one.
            if member.flight[0].ref is None:
                yield self._account(member)
        while waiting:
            ready, _ = self._ray.wait([*waiting], num_returns=1, timeout=GATHER_PATIENCE_S)
            if not ready and time.monotonic() - last_answer > GATHER_PATIENCE_S:
                last_answer = time.monotonic()
                self.say(f"waiting for {len(waiting)} of {len(self.members)} actors; the cluster may lack free CPUs")
            for ref in ready:
                member = waiting.pop(ref)
                last_answer = time.monotonic()
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

    def _account(self, member: Member) -> tuple[slice, StateDict]:
        """Refuse a rollout that is not the next one of its actor: none is learnt from twice, and none is left out."""
        flight = member.flight.popleft()
        part = flight.part
        if part["number"] != flight.number or flight.number != member.last_number + 1:
            raise RuntimeError(f"{member.name} gave rollout {part['number']} where {member.last_number + 1} was due")
        member.last_number = flight.number
        member.lost_in_row = 0
        self.delivered += 1
        self._gap = max(self._gap, self._version - part["version"])
        return member.columns, part

    def _answers(self, ask: Callable[[Member], Any]) -> list[Any]:
        """What all actors answer, in their order; of one that is lost meanwhile, what its successor begins with."""
        # All are asked before the first answer is awaited.
        refs = list(map(ask, self.members))
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
            # A mask, NaN, a package or, before the first reset, a setting is the user's to mend.
            if isinstance(cause, MaskFault | NotFinite | ImportError):
                raise cause from None
            if isinstance(cause, ValueError) and not self.has_reset:
                raise cause from None
            if isinstance(cause, gym.error.Error) and not self.has_reset:
                raise UsageError(
                    f"actors cannot make env={self._config.env} ({first_line(cause)}); register it in a module, and "
                    "give env=module:Id"
                ) from None
            failure = WorkerError(f"{member.name} raised {type(cause).__name__}: {cause}")
            failure.add_note(f"The traceback in the actor:\n{error}")
            raise failure from None
        except errors.RayError as error:
            begun = self._replace(member, first_line(error))
            if begins:
                return begun
            return None

    def _replace(self, member: Member, why: str) -> Any:
        """A new actor for these columns, which is asked for the rollouts that were in flight; what it begins with."""
        member.lost_in_row += 1
        if member.lost_in_row >= MAX_ACTOR_LOSSES:
            raise WorkerError(f"{member.name} was lost {MAX_ACTOR_LOSSES} times in a row without a rollout ({why})")
        self.restarts += 1
        member.generation += 1
        with suppress(Exception):
            self._ray.kill(member.handle)
        count = sum(flight.ref is not None for flight in member.flight)
        self.dropped += count
        self.say(f"{member.name} was lost ({why}); {count} rollouts are dropped, its episodes end, it is replaced")
        member.handle = self._remote.remote()
        pid = self._answer(member, self._make(member), True)
        # If the successor was lost, too, this is what the one after it begins with.
        if isinstance(pid, int):
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

    def snapshot(self) -> StateDict:
        """What `restore` continues from; rollouts in flight are waited for, and learnt from later all the same."""
        for member in self.members:
            for place in range(len(member.flight)):
                while member.flight[place].ref is not None:
                    self._fetch(member, member.flight[place])
        states = self._answers(lambda member: member.handle.snapshot.remote())
        # An actor that was lost while it was idle gives what its successor begins with; the episodes are lost, too.
        if any(isinstance(state, tuple) for state in states):
            return {"parts": []}
        parts = [state["envs"] for state in states]
        if all(set(part) == {"envs"} for part in parts):
            snapshot: StateDict = {"envs": []}
            for part in parts:
                snapshot["envs"] += part["envs"]
        elif len(parts) == 1:
            snapshot = dict(parts[0])
        else:
            snapshot = {"parts": parts}
        # With a lag the actors are ahead of the learner.
        if any(member.flight for member in self.members):
            snapshot["pending"] = []
            snapshot["standing"] = []
            for member, state in zip(self.members, states):
                snapshot["pending"].append([flight.part for flight in member.flight])
                snapshot["standing"].append(state["standing"])
        return snapshot

    def restore(self, state: StateDict) -> None:
        """Continue from a snapshot, or from one of a local run, once the collector is where it was."""
        self._restoring = state
        self.has_reset = True

    def settle(self, collector: FleetCollector | FleetSteps) -> None:
        """After `restore`: bring the actors to where they were; what cannot be divided among them is lost."""
        rng_state = collector.rng.bit_generator.state
        self._entropy = rng_state["state"]["state"]
        if self._restoring is None:
            return
        state = dict(self._restoring)
        self._restoring = None
        pending = state.pop("pending", [[] for _ in self.members])
        standing = state.pop("standing", None)
        parts = self._divide(state)
        for member in self.members:
            self._forget_flight(member)
        if parts is None or len(pending) != len(self.members):
            self._answers(lambda member: member.handle.begin.remote(self._new_seed(member), True))
            self.say("the saved episodes do not divide among these actors: they are lost, and new ones begin")
            return
        standings = []
        for member, rollouts in zip(self.members, pending):
            for number, rollout in enumerate(rollouts, self._issued):
                member.flight.append(Flight(number, {**rollout, "number": number, "version": self._version}))
            standings.append(
                standing[member.number] if standing else collector.actor_state(member.columns, member.number)
            )
        self._issued += len(pending[0])
        self._answers(lambda member: member.handle.restore.remote(standings[member.number], parts[member.number]))

    def _divide(self, state: StateDict) -> list[Any] | None:
        """The snapshot of each member, or None where they do not divide so."""
        if set(state) == {"envs"}:
            return [{"envs": state["envs"][member.columns]} for member in self.members]
        parts = state.get("parts", [state])
        if len(parts) == len(self.members):
            return parts
        return None

    def take_metrics(self) -> dict[str, float]:
        """Tags since the last call: shares of the wall's time by what it went to, and the policy's lag in updates."""
        now = time.perf_counter()
        tags = {}
        for name, total in self.seconds.items():
            seconds = total - self._measured_seconds.get(name, 0.0)
            tags[f"time/{name}"] = seconds / (now - self._measured_at)
        tags["time/lag"] = float(self._gap)
        self._measured_at = now
        self._measured_seconds = dict(self.seconds)
        return tags

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
    fleets = []

    def make_fleet(config: TrainConfig, driver: str, n: int, mix: Any, crashes: Any = None) -> Fleet:
        refuse(ray, config, n, mix)
        with closing(make_env(config.env, max_episode_steps=config.max_episode_steps, **config.env_options)) as single:
            spaces = (single.observation_space, single.action_space)
        servers = None
        if config.servers:
            has_gpus = config.device != "cpu" and ray.cluster_resources().get("GPU", 0)
            servers = Servers(ray, config, spaces, "cuda" if has_gpus else "cpu")
        fleet = Fleet(ray, config, n, mix, single, servers)
        fleets.append(fleet)
        return fleet

    try:
        yield make_fleet
    finally:
        for fleet in fleets:
            fleet.close()
        if joined:
            with suppress(Exception):
                ray.shutdown()


def refuse(ray: Any, config: TrainConfig, n: int, mix: Any) -> None:
    """A UsageError for what a cluster cannot run, or this one cannot, before anything starts."""
    workers = config.workers
    servers = config.servers
    for name in {**guides(mix), **endings(mix)}:
        raise UsageError(
            f"the reward {name} acts inside the environments, which are in other processes with cluster="
            f"{config.cluster}, and may not leave the learner; leave it or cluster= out"
        )
    _refuse_agent(config)
    if workers > n:
        raise UsageError(f"workers={workers} actors cannot share n_envs={n} environments; give n_envs={workers}")
    resources = ray.cluster_resources()
    cpus = int(resources.get("CPU", 0))
    if workers + servers > cpus:
        raise UsageError(
            f"workers={workers} and servers={servers} are more than the cluster has CPUs ({cpus}); "
            "give fewer, or add a node"
        )
    if servers:
        _refuse_servers(config, mix, int(resources.get("GPU", 0)))
    sentence = misfit(ray, other_versions_sentence, versions())
    if sentence:
        raise UsageError(sentence)


def _refuse_agent(config: TrainConfig) -> None:
    """A UsageError for options of an agent that need acting and learning in one process."""
    agent = config.agent
    if config.agent_name == "dyna":
        if agent.planner != "none":
            raise UsageError(
                f"agent.planner={agent.planner} acts by the model, which stays with the learner; give "
                "agent.planner=none, or leave cluster= out"
            )
        return
    if config.lag and agent.gru:
        raise UsageError(
            f"agent.gru={agent.gru} remembers by weights that lag={config.lag} replaces meanwhile; give lag=0"
        )
    if agent.overlap:
        raise UsageError("agent.overlap collects in this process what actors collect; give lag=1 in its place")


def _refuse_servers(config: TrainConfig, mix: Any, gpus: int) -> None:
    """A UsageError for rewards that no server can embed frames for, and for servers that lack GPUs."""
    rewards = frame_rewards(mix)
    if not rewards:
        raise UsageError(f"servers={config.servers} embed frames, and no reward here reads any; leave it out")
    for name, reward in rewards.items():
        if reward.embedding is None or reward.keeps_frames:
            raise UsageError(
                f"the reward {name} needs the frames themselves, which may not leave the learner; give servers=0"
            )
    if config.servers > gpus and config.device.startswith("cuda"):
        raise UsageError(
            f"servers={config.servers} on device={config.device} are more than the cluster has GPUs ({gpus}); give "
            "device=cpu, or add a node"
        )
