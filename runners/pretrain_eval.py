"""What the in-domain CLIP is worth where training did not look, and beside its controls.

Every number is a mean over sentences of the Pearson correlation, over frames, of the reward (the cosine) and the truth.
The
splits: frames of new states; phrasings, synonyms and attribute pairs that training never used; VLM-RM's own prompts;
    colours that training never used; frames along trajectories of random and of scripted policies; sentences without
    meaning. The
controls: the same model untrained; one trained on shuffled captions; a network of the same size as the image tower that
regresses the attributes without any language (where it equals CLIP, language bought the interface, not the accuracy).
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runners.pretrain import PretrainConfig, fit_tower, model_config, run, states_of
from runners.pretrain_captions import Caption, Grammar, truth
from runners.pretrain_data import (
    ATTRIBUTES,
    CARTPOLE,
    FRESH,
    MOUNTAINCAR,
    PENDULUM,
    VERBATIM,
    WORLDS,
    States,
    join,
    sample_states,
)
from runners.pretrain_frames import THEMES_HELD_OUT, draw

RESULTS = Path("assets/results")
PER_WORLD = 300  # held-out frames
GOALS = {
    CARTPOLE: (VERBATIM[0], "up"),
    MOUNTAINCAR: (VERBATIM[1], "peak"),
    PENDULUM: ("pendulum in the upright position", "up"),
}
OFF_TOPIC = (
    "a humanoid robot kneeling",
    "stock prices rose sharply today",
    "the cat sat on the mat",
    "bright red tulips in a vase",
    "quantum chromodynamics",
    "the president gave a speech",
    "a bowl of noodle soup",
    "she plays the violin",
)
Score = Callable[[Sequence[str], np.ndarray], np.ndarray]  # sentences, frames -> rewards (sentences, frames)


def correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's, along the last axis; 0 where one side is constant."""
    a, b = (x - x.mean(-1, keepdims=True) for x in (np.asarray(a, np.float64), np.asarray(b, np.float64)))
    length = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return (a * b).sum(-1) / np.where(length > 1e-12, length, np.inf)


def clip_score(folder: Path, weights: str = "") -> Score:
    """The reward of the model in `folder`, as `clip` pays it with alpha=0."""
    from rewards.vision.encoder import Encoder

    encoder = Encoder(f"local-dir:{folder}", weights)
    last: list[np.ndarray] = []  # the frames seen last, held so that no others can take their place, and embeddings

    def score(sentences: Sequence[str], frames: np.ndarray) -> np.ndarray:
        if not last or last[0] is not frames:
            last[:] = [frames, encoder.image(frames, 256).astype(np.float32)]
        return encoder.text(list(sentences)) @ last[1].T

    return score


def split_captions() -> dict[str, list[Caption]]:
    """Split -> sentences; `states` holds sentences as in training."""

    def clauses(held_out: str | None, denied: bool = False) -> list[Caption]:
        grammar = Grammar(np.random.default_rng(1), held_out=held_out)
        known = tuple(FRESH) if held_out == "fresh" else tuple(ATTRIBUTES)
        return [grammar.clause(name, denied=denied) for _ in range(10) for name in known]

    pairs = Grammar(np.random.default_rng(1), held_out="pairs")
    return {
        "states": clauses(None),
        "denials": clauses(None, denied=True),
        "phrasings": clauses("phrasings") + clauses("phrasings", denied=True)[: len(ATTRIBUTES)],
        "synonyms": clauses("synonyms"),
        "synonyms_fresh": clauses("fresh"),
        "pairs": [pairs.pair() for _ in range(100)],
    }


def measure(score: Score, captions: Sequence[Caption], frames: np.ndarray, states: States) -> np.ndarray:
    """Correlation of each caption's reward and truth over the frames of the first world that it can be about."""
    rewards, (target, _) = score([c.text for c in captions], frames), truth(captions, states)
    values = []
    for caption, reward, true in zip(captions, rewards, target):
        here = states.world == caption.worlds[0]
        values.append(correlation(reward[here], true[here]))
    return np.array(values)


def meaningless(score: Score, frames: np.ndarray, states: States) -> tuple[np.ndarray, np.ndarray]:
    """For sentences without meaning: |correlation| with each world's goal, and their spread over the goal prompt's."""
    grammar = Grammar(np.random.default_rng(7))
    sentences = ["qwv zzxk blorp", *OFF_TOPIC]
    while len(sentences) < 40:
        word = "".join(chr(97 + c) for c in grammar.rng.integers(26, size=6))
        sentences.append(f"{word} {''.join(chr(97 + c) for c in grammar.rng.integers(26, size=5))} {word[::-1]}")
    correlations, spreads = [], []
    for world, (prompt, attribute) in GOALS.items():
        here = states.world == world
        true = ATTRIBUTES[attribute].truth(states[here])
        rewards = score(sentences, frames)[:, here]
        correlations.append(np.abs(correlation(rewards, true[None])))
        spreads.append(rewards.std(1) / score([prompt], frames)[0, here].std())
    return np.concatenate(correlations), np.concatenate(spreads)


def visited(rng: np.random.Generator, steps: int = 200) -> States:
    """States along trajectories: a random policy's and a scripted one's, in each world."""
    import gymnasium as gym

    import envs  # noqa: F401  registers lodestar/...

    parts = []
    for world, name in enumerate(("CartPoleUpright", "MountainCarGoal", "PendulumUpright")):
        env: Any = gym.make(f"lodestar/{name}-v0")
        for policy in (lambda obs, env=env: env.action_space.sample(), _SCRIPTS[world]):
            env.reset(seed=int(rng.integers(1000)))
            env.action_space.seed(int(rng.integers(1000)))
            angle, x = np.zeros(steps), np.zeros(steps)
            for t in range(steps):
                env.step(policy(env.unwrapped.state))
                state = env.unwrapped.state
                angle[t] = {CARTPOLE: 1, PENDULUM: -1}.get(world, 0) * (state[2] if world == CARTPOLE else state[0])
                x[t] = 0 if world == PENDULUM else state[0]
                if t % 100 == 99:
                    env.reset()
            parts.append(States(np.full(steps, world), angle, x))
    return join(parts)


def _balance(state: np.ndarray) -> int:
    x, v, angle, spin = state
    return int(angle + 0.5 * spin + 0.1 * x + 0.15 * v > 0)


def _climb(state: np.ndarray) -> int:
    return 2 if state[1] >= 0 else 0


def _swing(state: np.ndarray) -> np.ndarray:
    angle, spin = np.arctan2(np.sin(state[0]), np.cos(state[0])), state[1]
    near = abs(angle) < 0.4
    return np.array([-12 * angle - 3 * spin if near else 2.0 * np.sign(spin or 1.0)]).clip(-2, 2)


_SCRIPTS: tuple[Callable[[np.ndarray], Any], ...] = (_balance, _climb, _swing)


def regressor(config: PretrainConfig, frames: np.ndarray, states: States) -> Callable[[np.ndarray], np.ndarray]:
    """The control without language: the same image tower, one output an attribute; frames -> (attributes, frames)."""
    import torch
    from open_clip.modified_resnet import ModifiedResNet

    from runners.pretrain import PREPROCESSING

    torch.manual_seed(config.seed)
    vision = model_config(1)["vision_cfg"]
    tower = ModifiedResNet(
        vision["layers"], len(ATTRIBUTES), vision["width"] // 2, vision["image_size"], vision["width"]
    )
    claims = [_plain(name) for name in ATTRIBUTES]

    def loss(features: Any, seen: States) -> Any:
        target, about = (torch.from_numpy(x).T for x in truth(claims, seen))
        return ((features - target).square() * about).mean()

    fit_tower(tower, loss, frames, states, config)
    mean, std = (torch.tensor(PREPROCESSING[name])[:, None, None] for name in ("mean", "std"))

    def predict(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
            return torch.cat([tower((x - mean) / std) for x in pixels.split(256)]).T.numpy()

    return predict


def _plain(name: str) -> Caption:
    worlds = {"rod": (CARTPOLE, PENDULUM), "cart": (CARTPOLE,), "car": (MOUNTAINCAR,)}[ATTRIBUTES[name].about]
    return Caption(name, worlds, ((name, False),))


def evaluate(config: PretrainConfig) -> dict[str, float]:
    """Measure the model in `config.out` and its controls; writes clip_splits.csv and .json, returns the figures."""
    from runners.results import append_rows, write_figures

    rng = np.random.default_rng(config.seed + 99)  # not the seed of the training states
    states = join([sample_states(rng, PER_WORLD, world) for world in range(len(WORLDS))])
    frames = draw(states, 64, rng)
    rows: list[dict[str, Any]] = []

    def note(model: str, split: str, values: np.ndarray) -> float:
        row = {"model": model, "split": split, "sentences": len(values), "mean": round(float(values.mean()), 3)}
        row |= {
            "worst_tenth": round(float(np.quantile(values, 0.1)), 3),
            "below_zero": round(float((values < 0).mean()), 3),
        }
        rows.append(row)
        print(row, flush=True)
        return float(values.mean())

    folder, captions = Path(config.out), split_captions()
    trained = clip_score(folder)
    figures = {
        f"heldout_{name}": note("lodestar", name, measure(trained, c, frames, states)) for name, c in captions.items()
    }
    for world, (prompt, attribute) in GOALS.items():
        claim = Caption(prompt, (world,), ((attribute, False),))
        kind = "held-out prompt" if prompt in VERBATIM else "prompt that training can draw"
        value = note("lodestar", f"{kind}: {prompt}", measure(trained, [claim], frames, states))
        figures[f"goal_{WORLDS[world].lower()}"] = value
    correlations, spreads = meaningless(trained, frames, states)
    figures["gibberish"] = note("lodestar", "gibberish: |correlation| with the goal", correlations)
    figures["gibberish_spread"] = note("lodestar", "gibberish: spread over the goal prompt's", spreads)
    themes = [
        note("lodestar", f"theme: {name}", measure(trained, captions["states"], theme(frames), states))
        for name, theme in THEMES_HELD_OUT.items()
    ]
    figures["heldout_themes"] = float(np.mean(themes))
    on_policy = visited(rng)
    policy_frames = draw(on_policy, 64, rng)
    figures["policy_visited"] = note(
        "lodestar", "policy-visited frames", measure(trained, captions["states"], policy_frames, on_policy)
    )
    figures["untrained"] = note(
        "untrained", "states", measure(clip_score(folder, "untrained"), captions["states"], frames, states)
    )
    with tempfile.TemporaryDirectory() as scratch:
        shuffled = dataclasses.replace(config, shuffle=True, seed=config.seed + 1)
        shuffled.steps, shuffled.text_steps = config.steps // 3 + 1, config.text_steps // 3 + 1  # nothing to learn
        run(shuffled, Path(scratch))
        figures["shuffled"] = note(
            "shuffled captions", "states", measure(clip_score(Path(scratch)), captions["states"], frames, states)
        )
    training = states_of(config)
    predict = regressor(config, draw(training, 64, np.random.default_rng(config.seed)), training)
    order = {name: i for i, name in enumerate(ATTRIBUTES)}

    def without_language(sentences: Sequence[str], images: np.ndarray) -> np.ndarray:
        return predict(images)[[order[sentence] for sentence in sentences]]

    plain = [_plain(name) for name in ATTRIBUTES]
    figures["regressor"] = note("regressor, no language", "states", measure(without_language, plain, frames, states))
    note("regressor, no language", "policy-visited frames", measure(without_language, plain, policy_frames, on_policy))
    alike = captions["states"][: len(plain)]  # one sentence an attribute, as the regressor has one output
    note("lodestar", "states, one sentence an attribute", measure(trained, alike, frames, states))
    table = RESULTS / "clip_splits.csv"
    table.unlink(missing_ok=True)
    append_rows(table, rows)
    default = PretrainConfig()
    given = [f.name for f in dataclasses.fields(config) if getattr(config, f.name) != getattr(default, f.name)]
    command = " ".join(["python -m runners.pretrain", *(f"{name}={getattr(config, name)}" for name in given)])
    write_figures(RESULTS / "clip_splits.json", command.replace("True", "true"), figures)
    return figures
