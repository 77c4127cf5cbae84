"""What an evaluated policy costs: the means that limits are about, counted around one environment.

env = meter_costs(env, mix)     as it is where no stream of the mix has a limit
env.means()                     by the name of the stream: its mean cost so far
"""

import gymnasium as gym

from envs.transitions import Transitions
from envs.types import Info, Options
from rewards.adapters.driver import EpisodeTracker, TrackedEnv, modality_options
from rewards.mix.mix import Mix, Stream


def cost_modalities(mix: Mix) -> Options:
    """What streams with a limit read beside observations, as arguments of `envs.make.make`."""
    streams = limited_streams(mix)
    options = modality_options(streams)
    if any("frame" in stream.requires for stream in streams.values()):
        options["frame_size"] = mix.frame_size
    return options


def limited_streams(mix: Mix) -> dict[str, Stream]:
    """The streams of a mix that have a limit, by name."""
    return {name: mix.streams[name] for name in mix.limits}


class Costs(TrackedEnv):
    """One environment, and the sums of its costs since it was made."""

    kept = "costs"

    def __init__(self, env: gym.Env, mix: Mix) -> None:
        self.streams = limited_streams(mix)
        super().__init__(env, mix, EpisodeTracker(self.streams, 1, mix.frame_size))
        self.mix = mix
        self.sums = dict.fromkeys(mix.limits, 0.0)
        self.counts = {"step": 0, "episode": 0}

    def observe(self, batch: Transitions, info: Info) -> bool:
        batch = self.mix.embed(batch)
        memory = self.tracker.memory
        for name, stream in self.streams.items():
            scores, after = stream.score(batch, memory.get(name))
            if name in memory:
                memory[name] = after
            self.sums[name] += float(scores[0])
        self.counts["step"] += 1
        self.counts["episode"] += int(batch.ended[0])
        return False

    def means(self) -> dict[str, float]:
        """The mean cost, of a step or of an episode, of every stream that has a limit."""
        means = {}
        for name, limit in self.mix.limits.items():
            means[name] = self.sums[name] / max(self.counts[limit.per], 1)
        return means


def meter_costs(env: gym.Env, mix: Mix | None) -> gym.Env:
    """The environment, whose costs are counted; itself without a limit."""
    if mix is None or not mix.limits:
        return env
    return Costs(env, mix)
