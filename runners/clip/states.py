"""States of an environment to learn from: where random play and a script lead, and those that its family scatters."""

from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from envs.family import family_of
from envs.make import make
from envs.masks import sample
from envs.render import frame
from envs.types import MASK
from rewards.vision.training.lexicon import States
from runners.clip.config import ClipTraining
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


class Seen(NamedTuple):
    """A state: its frame, uint8 (size, size, 3), what is true of it, and the degrees of its goals."""

    frame: np.ndarray
    truths: Truths
    degrees: dict[str, float]


class StateSource:
    """Where the states of one environment come from; `describer` says what is true of them."""

    def __init__(self, config: ClipTraining) -> None:
        self.config = config
        with closing(make(config.env, frame_size=config.size, **config.env_options)) as made:
            self.describer = Describer(made, config.captions)

    def collect(self, count: int, seed: int) -> list[Seen]:
        """`count` states: half by `scatter` where the family has one, the rest by play, scripted where there is one."""
        seen: list[Seen] = []
        options = self.config.env_options
        with closing(make(self.config.env, render_mode="rgb_array", seed=seed, **options)) as env:
            rng = np.random.default_rng(seed)
            env.reset()
            family = family_of(env.spec)
            if family.scatter(env, rng):
                for _ in range(count // 2):
                    env.reset()
                    family.scatter(env, rng)
                    seen.append(self._describe(env))
            self._play(seen, env, count, seed)
        return seen

    def _play(self, seen: list[Seen], env: Any, count: int, seed: int) -> None:
        """Episodes of random actions, in turns with the script's, until there are `count` states."""
        act = None
        if self.config.policy:
            model = load(self.config.policy, env.observation_space, env.action_space)
            act = noisy_policy(model, env.action_space, SCRIPT_NOISE, seed)
        episode = 0
        step = 0
        obs, info = env.reset()
        while len(seen) < count:
            if step % STEPS_A_FRAME == 0:
                seen.append(self._describe(env))
            mask = (info[MASK],) if MASK in info else ()
            action = sample(env.action_space, *mask)
            if act is not None and episode % 2:
                action = act(np.asarray(obs)[None], np.zeros(1, bool), *(m[None] for m in mask))[0]
            obs, _, terminated, truncated, info = env.step(action)
            step += 1
            if terminated or truncated:
                # The last state of an episode is often the one that a goal is about.
                seen.append(self._describe(env))
                episode += 1
                obs, info = env.reset()

    def _describe(self, env: Any) -> Seen:
        truths, degrees = self.describer(env)
        return Seen(frame(env, self.config.size), truths, degrees)


class Sentences:
    """The sentences that states were described by, and their truths as facts of `States`.

    A sentence that is true of every state joins the baselines, and one that is never true is left out; `constant` has
    both. A UsageError if none is left, or if there are more than MAX_SENTENCES.
    """

    def __init__(self, source: StateSource, seen: list[Seen]) -> None:
        self.describer = source.describer
        spoken: dict[str, None] = {}
        for state in seen:
            spoken |= dict.fromkeys(state.truths)
        if len(spoken) > MAX_SENTENCES:
            raise UsageError(
                f"{len(spoken)} different sentences describe {len(seen)} states, the limit is {MAX_SENTENCES}; "
                "say where things are in words, without numbers"
            )
        self.ends: dict[str, tuple[float, float]] = {}
        for prompt in seen[0].degrees:
            self.ends[prompt] = degree_ends(np.array([state.degrees[prompt] for state in seen]))
        self.sentences = []
        self.constant = []
        for text in spoken:
            if 0 < states_where_true(text, seen).sum() < len(seen):
                self.sentences.append(text)
            else:
                self.constant.append(text)
        if not self.sentences:
            examples = ", ".join(map(repr, self.constant[:3])) or "nothing was said"
            raise UsageError(
                f"no sentence is true of some states and false of others ({examples}); describe more, or reach more "
                "states: policy=my_file:script acts in half of the episodes, and a family's scatter sets states"
            )

    def states(self, seen: list[Seen]) -> States:
        """How true each sentence is of each state, graded where its goal is, and so the opposites of goals."""
        facts = {}
        for text in self.sentences:
            truths = np.array([state.truths.get(text, 0.0) for state in seen])
            if text in self.ends:
                degree = np.array([state.degrees[text] for state in seen])
                truths = grade(truths, degree, self.ends[text])
            facts[text] = truths
        for prompt, negative in self.opposites:
            facts.setdefault(negative, 1 - facts[prompt])
        return States(np.zeros(len(seen), np.int64), facts)

    @property
    def opposites(self) -> list[tuple[str, str]]:
        """Prompts and the sentences for their opposites, where the prompt's truth varies."""
        pairs = []
        for pair in self.describer.opposites:
            if pair[0] in self.sentences:
                pairs.append(pair)
        return pairs

    @property
    def taught(self) -> list[str]:
        """Every sentence that is taught."""
        return [*self.sentences, *(negative for _, negative in self.opposites)]

    def chances(self, seen: list[Seen]) -> np.ndarray:
        """How often each state is drawn, (N,), sum 1: the more often, the rarer its rarest sentence is."""
        weight = np.ones(len(seen))
        for text in self.sentences:
            holds = states_where_true(text, seen)
            rarity = min(len(holds) / holds.sum(), MAX_OVERSAMPLING)
            weight = np.maximum(weight, np.where(holds, rarity, 1.0))
        return weight / weight.sum()


def states_where_true(text: str, seen: list[Seen]) -> np.ndarray:
    """Of which states a sentence is true, bool (N,)."""
    return np.array([state.truths.get(text, 0.0) >= 0.5 for state in seen])
