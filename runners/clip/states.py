"""States of an environment to learn from: where random play and a script lead, and those that its family scatters."""

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.family import family_of
from envs.make import make
from envs.masks import sample
from envs.render import frame
from envs.types import MASK
from rewards.vision.training.lexicon import States
from runners.clip.describe import Describer, Truths, degree_ends, grade
from runners.record import noisy_policy
from runners.run.config import UsageError
from runners.run.policies import load

# Of the states that play visits, one in so many is drawn: neighbours look alike.
STEPS_A_FRAME = 3
# Share of the scripted steps at which a random action replaces the script's.
SCRIPT_NOISE = 0.2
# Different sentences that a function may say; more of them would each be true of hardly any state.
MAX_SENTENCES = 300
# A state with a rare sentence is drawn at most so many times as often as others.
MAX_OVERSAMPLING = 20.0


@dataclass
class Seen:
    """Frames, uint8 (N, size, size, 3), and what is true of each."""

    frames: list[np.ndarray] = field(default_factory=list)
    truths: list[Truths] = field(default_factory=list)
    degrees: list[dict[str, float]] = field(default_factory=list)


class StateSource:
    """Where the states of one environment come from; `describer` says what is true of them."""

    def __init__(self, env: str, options: dict[str, Any], captions: str, policy: str, size: int) -> None:
        self.env = env
        self.options = options
        self.policy = policy
        self.size = size
        with closing(make(env, frame_size=size, **options)) as made:
            self.describer = Describer(made, captions)

    def collect(self, count: int, seed: int) -> Seen:
        """`count` states: half by `scatter` where the family has one, the rest by play, scripted where there is one."""
        seen = Seen()
        with closing(make(self.env, render_mode="rgb_array", seed=seed, **self.options)) as env:
            rng = np.random.default_rng(seed)
            env.reset()
            family = family_of(env.spec)
            if family.scatter(env, rng):
                for _ in range(count // 2):
                    env.reset()
                    family.scatter(env, rng)
                    self._note(seen, env)
            self._play(seen, env, count - len(seen.frames), seed)
        return seen

    def _play(self, seen: Seen, env: Any, count: int, seed: int) -> None:
        """Episodes of random actions, in turns with the script's."""
        act = None
        if self.policy:
            model = load(self.policy, env.observation_space, env.action_space)
            act = noisy_policy(model, env.action_space, SCRIPT_NOISE, seed)
        episode = 0
        step = 0
        goal = len(seen.frames) + count
        obs, info = env.reset()
        while len(seen.frames) < goal:
            if step % STEPS_A_FRAME == 0:
                self._note(seen, env)
            mask = (info[MASK],) if MASK in info else ()
            action = sample(env.action_space, *mask)
            if act is not None and episode % 2:
                action = act(np.asarray(obs)[None], np.zeros(1, bool), *(m[None] for m in mask))[0]
            obs, _, terminated, truncated, info = env.step(action)
            step += 1
            if terminated or truncated:
                # The last state of an episode is often the one that a goal is about.
                self._note(seen, env)
                episode += 1
                obs, info = env.reset()

    def _note(self, seen: Seen, env: Any) -> None:
        truths, degrees = self.describer(env)
        seen.frames.append(frame(env, self.size))
        seen.truths.append(truths)
        seen.degrees.append(degrees)


class Sentences:
    """The sentences that states were described by, and their truths as facts of `States`.

    A sentence that is true of every state joins the baselines, and one that is never true is left out; `constant` has
    both. A UsageError if none is left, or if there are more than MAX_SENTENCES.
    """

    def __init__(self, source: StateSource, seen: Seen) -> None:
        self.env = source.env
        self.describer = source.describer
        spoken = dict.fromkeys(text for truths in seen.truths for text in truths)
        if len(spoken) > MAX_SENTENCES:
            raise UsageError(
                f"{len(spoken)} different sentences describe {len(seen.truths)} states, the limit is {MAX_SENTENCES}; "
                "say where things are in words, without numbers"
            )
        self.ends: dict[str, tuple[float, float]] = {}
        for prompt in seen.degrees[0]:
            self.ends[prompt] = degree_ends(np.array([degrees[prompt] for degrees in seen.degrees]))
        self.sentences = []
        self.constant = []
        for text in spoken:
            if 0 < states_where_true(text, seen).sum() < len(seen.truths):
                self.sentences.append(text)
            else:
                self.constant.append(text)
        if not self.sentences:
            examples = ", ".join(map(repr, self.constant[:3])) or "nothing was said"
            raise UsageError(
                f"no sentence is true of some states and false of others ({examples}); describe more, or reach more "
                "states: policy=my_file:script acts in half of the episodes, and a family's scatter sets states"
            )

    def states(self, seen: Seen) -> States:
        """How true each sentence is of each state, graded where its goal is, and so the opposites of goals."""
        facts = {}
        for text in self.sentences:
            truths = np.array([truths.get(text, 0.0) for truths in seen.truths])
            if text in self.ends:
                degree = np.array([degrees[text] for degrees in seen.degrees])
                truths = grade(truths, degree, self.ends[text])
            facts[text] = truths
        for prompt, negative in self.opposites:
            facts.setdefault(negative, 1 - facts[prompt])
        return States(np.zeros(len(seen.frames), np.int64), facts)

    @property
    def opposites(self) -> list[tuple[str, str]]:
        """Prompts and the sentences for their opposites, where the prompt's truth varies."""
        return [pair for pair in self.describer.opposites if pair[0] in self.sentences]

    @property
    def taught(self) -> list[str]:
        """Every sentence that is taught."""
        return [*self.sentences, *(negative for _, negative in self.opposites)]

    def chances(self, seen: Seen) -> np.ndarray:
        """How often each state is drawn, (N,), sum 1: the more often, the rarer its rarest sentence is."""
        weight = np.ones(len(seen.truths))
        for text in self.sentences:
            holds = states_where_true(text, seen)
            rarity = min(len(holds) / holds.sum(), MAX_OVERSAMPLING)
            weight = np.maximum(weight, np.where(holds, rarity, 1.0))
        return weight / weight.sum()


def states_where_true(text: str, seen: Seen) -> np.ndarray:
    """Of which states a sentence is true, bool (N,)."""
    return np.array([truths.get(text, 0.0) >= 0.5 for truths in seen.truths])
