"""What the in-domain CLIP is worth where training did not look, and beside its controls.

Every number is a mean over sentences of the Pearson correlation, over frames of one world, of the reward (the cosine)
and the truth. The splits: frames of new states; phrasings, synonyms and attribute pairs that training never used; the
prompts of published methods; colours that training never used; frames along trajectories of random and of scripted
policies; sentences without meaning. The controls: the same model untrained; one trained on shuffled captions; a network
of the same size as the image tower that regresses the attributes without any language (where it equals CLIP, language
bought the interface, not the accuracy).
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assets.clip.train.__main__ import PretrainConfig, run, training_frames
from assets.clip.train.themes import THEMES_HELD_OUT
from assets.clip.train.worlds import MODELS
from rewards.vision.training.captions import Caption, Grammar, truth
from rewards.vision.training.fit import fit_tower
from rewards.vision.training.lexicon import Lexicon, States, collect, join
from rewards.vision.training.model import description

RESULTS = Path("assets/results")
TABLES = {"lodestar": ("clip_splits", ""), "lodestar-96": ("clip96_splits", "96")}  # name of the table, of its figures
PER_WORLD = 300  # held-out frames, times the world's share
VARIES = 0.02  # standard deviation of a truth that varies
VISITED = 200  # steps of the walk in each world
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
    from rewards.vision.encoder import ClipEncoder

    encoder = ClipEncoder(f"local-dir:{folder}", weights)
    last: list[np.ndarray] = []  # the frames seen last, held so that no others can take their place, and embeddings

    def score(sentences: Sequence[str], frames: np.ndarray) -> np.ndarray:
        if not last or last[0] is not frames:
            last[:] = [frames, encoder.image(frames, 256).astype(np.float32)]
        return encoder.text(list(sentences)) @ last[1].T

    return score


def split_captions(lexicon: Lexicon) -> dict[str, list[Caption]]:
    """Split -> sentences; `states` holds sentences as in training."""

    def clauses(held_out: str | None, denied: bool = False) -> list[Caption]:
        grammar = Grammar(lexicon, np.random.default_rng(1), held_out=held_out)
        known = [name for name, attribute in lexicon.attributes.items() if attribute.fresh or held_out != "fresh"]
        return [grammar.clause(name, denied=denied) for _ in range(10) for name in known]

    fresh = any(attribute.fresh for attribute in lexicon.attributes.values())
    pairs = Grammar(lexicon, np.random.default_rng(1), held_out="pairs")
    return {
        "states": clauses(None),
        "denials": clauses(None, denied=True),
        "phrasings": clauses("phrasings") + clauses("phrasings", denied=True)[: len(lexicon.attributes)],
        "synonyms": clauses("synonyms"),
        **({"synonyms_fresh": clauses("fresh")} if fresh else {}),
        "pairs": [pairs.pair() for _ in range(100)],
    }


def measure(
    lexicon: Lexicon, score: Score, captions: Sequence[Caption], frames: np.ndarray, states: States
) -> np.ndarray:
    """Correlation of each caption's reward and truth over the frames of one world that it can be about.

    The first world in which the truth varies; a caption for which it varies nowhere is left out.
    """
    rewards, (target, _) = score([c.text for c in captions], frames), truth(lexicon, captions, states)
    values = []
    for caption, reward, true in zip(captions, rewards, target):
        for world in caption.worlds:
            here = states.world == world
            if here.any() and true[here].std() > VARIES:
                values.append(correlation(reward[here], true[here]))
                break
    return np.array(values)


def meaningless(lexicon: Lexicon, score: Score, frames: np.ndarray, states: States) -> tuple[np.ndarray, np.ndarray]:
    """For sentences without meaning: |correlation| with each world's goal, and their spread over the goal prompt's."""
    grammar = Grammar(lexicon, np.random.default_rng(7))
    sentences = ["qwv zzxk blorp", *OFF_TOPIC]
    while len(sentences) < 40:
        word = "".join(chr(97 + c) for c in grammar.rng.integers(26, size=6))
        sentences.append(f"{word} {''.join(chr(97 + c) for c in grammar.rng.integers(26, size=5))} {word[::-1]}")
    correlations, spreads = [], []
    for i, world in enumerate(lexicon.worlds):
        prompt, attribute = world.goals[0]
        here = states.world == i
        true = lexicon.attributes[attribute].truth(states[here])
        rewards = score(sentences, frames)[:, here]
        correlations.append(np.abs(correlation(rewards, true[None])))
        spreads.append(rewards.std(1) / score([prompt], frames)[0, here].std())
    return np.concatenate(correlations), np.concatenate(spreads)


def visited(lexicon: Lexicon, rng: np.random.Generator, size: int, steps: int) -> tuple[States, np.ndarray]:
    """States and frames along trajectories: a random policy's, and a scripted one's in the worlds that have one."""
    parts = [collect(world.walk(rng, steps), i, size) for i, world in enumerate(lexicon.worlds)]
    return join([states for states, _ in parts]), np.concatenate([frames for _, frames in parts])


def regressor(config: PretrainConfig) -> Callable[[np.ndarray], np.ndarray]:
    """The control without language: the same image tower, one output an attribute; frames -> (attributes, frames)."""
    import torch

    from rewards.vision.small_clip import ImageTower

    of = MODELS[config.model]
    lexicon = of.lexicon()
    states, frames = training_frames(config)
    torch.manual_seed(config.seed)
    described = description(of.tower, 1)
    tower = ImageTower(described["model_cfg"]["vision_cfg"], len(lexicon.attributes), described["preprocess_cfg"])
    claims = [_plain(lexicon, name) for name in lexicon.attributes]

    def loss(features: Any, seen: States) -> Any:
        target, about = (torch.from_numpy(x).T for x in truth(lexicon, claims, seen))
        return ((features - target).square() * about).mean()

    fit_tower(tower, loss, frames, states, of.tower, config)

    def predict(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
            return torch.cat([tower((x - of.tower.mean) / of.tower.std) for x in pixels.split(256)]).T.numpy()

    return predict


def _plain(lexicon: Lexicon, name: str) -> Caption:
    return Caption(name, lexicon.worlds_of(name, ""), ((name, False),))


class Table:
    """The rows of a table of splits, printed as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def note(self, model: str, split: str, values: np.ndarray) -> float:
        """Add a row; returns the mean."""
        row = {"model": model, "split": split, "sentences": len(values), "mean": round(float(values.mean()), 3)}
        row["worst_tenth"] = round(float(np.quantile(values, 0.1)), 3)
        row["below_zero"] = round(float((values < 0).mean()), 3)
        self.rows.append(row)
        print(row, flush=True)
        return float(values.mean())


def evaluate(config: PretrainConfig) -> dict[str, float]:
    """Measure the model in `config.out` and its controls; writes a table and its figures, returns the figures."""
    from benchmarks.results import append_rows, write_figures

    of = MODELS[config.model]
    lexicon, (name, mark) = of.lexicon(), TABLES[config.model]
    rng = np.random.default_rng(config.seed + 99)  # not the seed of the training states
    states, frames = lexicon.sample(rng, PER_WORLD, of.tower.size)
    on_policy = visited(lexicon, np.random.default_rng(config.seed + 98), of.tower.size, VISITED)
    table, folder = Table(), Path(config.out)
    captions, trained = split_captions(lexicon), clip_score(folder)
    figures = {
        f"heldout{mark}_{split}": table.note("lodestar", split, measure(lexicon, trained, c, frames, states))
        for split, c in captions.items()
    }
    figures |= _worlds(lexicon, mark, trained, captions["states"], (states, frames), on_policy, table)
    correlations, spreads = meaningless(lexicon, trained, frames, states)
    figures[f"gibberish{mark}"] = table.note("lodestar", "gibberish: |correlation| with the goal", correlations)
    figures[f"gibberish{mark}_spread"] = table.note("lodestar", "gibberish: spread over the goal prompt's", spreads)
    themes = [
        table.note("lodestar", f"theme: {theme}", measure(lexicon, trained, captions["states"], change(frames), states))
        for theme, change in THEMES_HELD_OUT.items()
    ]
    figures[f"heldout{mark}_themes"] = float(np.mean(themes))
    untrained = measure(lexicon, clip_score(folder, "untrained"), captions["states"], frames, states)
    figures[f"untrained{mark}"] = table.note("untrained", "states", untrained)
    if config.controls:
        figures |= _controls(config, mark, captions["states"], (states, frames), on_policy, table)
    path = RESULTS / f"{name}.csv"
    path.unlink(missing_ok=True)
    append_rows(path, table.rows)
    default = PretrainConfig(model=config.model)
    given = [f.name for f in dataclasses.fields(config) if getattr(config, f.name) != getattr(default, f.name)]
    given = ["model"] * (config.model != "lodestar") + given
    command = " ".join(["python -m assets.clip.train", *(f"{key}={getattr(config, key)}" for key in given)])
    write_figures(RESULTS / f"{name}.json", command.replace("True", "true").replace("False", "false"), figures)
    return figures


def _worlds(
    lexicon: Lexicon,
    mark: str,
    score: Score,
    captions: Sequence[Caption],
    new: tuple[States, np.ndarray],
    on_policy: tuple[States, np.ndarray],
    table: Table,
) -> dict[str, float]:
    """Each world by itself: its sentences and its goals' prompts, on new states and on those that policies visit."""
    figures = {
        f"policy{mark}_visited": table.note(
            "lodestar", "policy-visited frames", measure(lexicon, score, captions, *on_policy[::-1])
        )
    }
    for split, key, goal, (states, frames) in (
        ("new", "heldout", "goal", new),
        ("policy-visited", "policy", "policygoal", on_policy),
    ):
        for i, world in enumerate(lexicon.worlds):
            own = [dataclasses.replace(c, worlds=(i,)) for c in captions if i in c.worlds]
            label = f"{mark}_{world.name.lower()}"
            values = measure(lexicon, score, own, frames, states)
            figures[key + label] = table.note("lodestar", f"{world.name}, {split} states", values)
            for prompt, attribute in world.goals:
                claim = Caption(prompt, (i,), ((attribute, False),))
                value = measure(lexicon, score, [claim], frames, states)
                if len(value):
                    kind = "held-out prompt" if prompt in lexicon.verbatim else "prompt that training can draw"
                    figures.setdefault(goal + label, table.note("lodestar", f"{kind}, {split} states: {prompt}", value))
    return figures


def _controls(
    config: PretrainConfig,
    mark: str,
    captions: Sequence[Caption],
    new: tuple[States, np.ndarray],
    on_policy: tuple[States, np.ndarray],
    table: Table,
) -> dict[str, float]:
    """A model trained on shuffled captions, and a tower without language."""
    lexicon = MODELS[config.model].lexicon()
    states, frames = new
    with tempfile.TemporaryDirectory() as scratch:
        shuffled = dataclasses.replace(config, shuffle=True, seed=config.seed + 1)
        shuffled.steps, shuffled.text_steps = config.steps // 3 + 1, config.text_steps // 3 + 1  # nothing to learn
        run(shuffled, Path(scratch))
        value = measure(lexicon, clip_score(Path(scratch)), captions, frames, states)
        figures = {f"shuffled{mark}": table.note("shuffled captions", "states", value)}
    predict = regressor(config)
    order = {name: i for i, name in enumerate(lexicon.attributes)}

    def without_language(sentences: Sequence[str], images: np.ndarray) -> np.ndarray:
        return predict(images)[[order[sentence] for sentence in sentences]]

    plain = [_plain(lexicon, name) for name in lexicon.attributes]
    label = "regressor, no language"
    value = measure(lexicon, without_language, plain, frames, states)
    figures[f"regressor{mark}"] = table.note(label, "states", value)
    table.note(label, "policy-visited frames", measure(lexicon, without_language, plain, *on_policy[::-1]))
    alike = captions[: len(plain)]  # one sentence an attribute, as the regressor has one output
    value = measure(lexicon, clip_score(Path(config.out)), alike, frames, states)
    table.note("lodestar", "states, one sentence an attribute", value)
    return figures
