"""The numbers of a report card: what a reward says about a sample of transitions, beside what is true of them.

Rules of the verdict, for a reward that has a goal; the first list that fits decides. The thresholds are this file's own
choice, checked against sentences known to be good and bad (`benchmarks bad-prompts`).

    do not train with this   it is constant; its interval of Spearman's correlation with the truth lies below 0; its
                             AUROC is below 0.7; what it says spreads less than 5 % as far as the widest of the model's
                             own phrases does; or a sentence without meaning correlates as well with the truth
    weak                     its AUROC is below 0.85; its spread is below 15 %; the model was not taught such sentences;
                             a fifth of the frames or more are blank
    usable                   else

Intervals resample rows as if they were independent; those of episodes are not, so they are a little too narrow.

A bonus has no truth to be held against: it is usable where it is not constant, and only training shows whether it
helps. The same holds for a goal reward in an environment whose goals nobody can tell (`not judged`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rewards import compare as distances
from runners.compare.sample import Sample, World
from runners.compare.subject import FITTED, GAMMA, Subject

USABLE, WEAK, DO_NOT, NOT_JUDGED = "usable", "weak", "do not train with this", "not judged"
CHANCE, GOOD = 0.7, 0.85  # AUROC
NARROW, SLIM = 0.05, 0.15  # spread over that of the model's own phrases
BLANK = 0.2
GIBBERISH = ("qwv zzxk blorp", "frumious jub tove")
OFF_TOPIC = ("a bowl of noodle soup", "the president gave a speech")
UNFAMILIAR = "is not like what this model was taught"
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
ROWS, DRAWS = 256, 32  # of the canonical EPIC

Card = dict[str, Any]


def card(subject: Subject, goal: int | None, world: World | None = None, wanted: str = "") -> Card:
    """Everything that is known of a reward before training.

    Args:
        subject: the reward, with its scores.
        goal: index of the goal in the sample's truth; None where the environment has none.
        world: every state of the environment, where it is small.
        wanted: name of the goal.
    """
    sample, values = subject.sample, subject.values
    counted = sample.counted
    truth = None if goal is None else sample.truth[:, goal]
    target = _target(sample, goal)
    made: Card = {
        "name": subject.name,
        "role": subject.reward.role,
        "target": _target_in_words(sample, goal, wanted),
        "goal": goal,
        "sentences": {f: getattr(subject.config, f) for f in ("goal", "negative", "baseline") if _text(subject, f)},
        "rows": int(counted.sum()),
        "about": sample.about(),
        "notes": _notes(subject),
        "blank": float(sample.blank[counted].mean()),
        "range": [float(q) for q in np.quantile(values[counted], QUANTILES)],
        "nonzero": float((values[counted] != 0).mean()),
        "truth": measures(values[counted], truth[counted], target[counted]) if truth is not None else None,
        "met": None if truth is None else float(truth[counted].mean()),
        "task": measures(values[counted], None, sample.batch.reward[counted]),
        "landscape": landscape(subject, target),
        "phrases": nearest_phrases(subject),
        "spread": relative_spread(subject),
        "speed": speed(subject),
        "controls": controls(subject, truth, target),
    }
    made["starc"] = starc(subject, target, world, goal)
    made["epic"] = canonical_epic(subject, target)
    made["verdict"], made["reasons"] = verdict(made)
    return made


def _text(subject: Subject, field: str) -> bool:
    return isinstance(getattr(subject.config, field, None), str) and bool(getattr(subject.config, field))


def _target(sample: Sample, goal: int | None) -> np.ndarray:
    """What is true, as finely as the family knows it; the task's own reward where there is no goal. float64 (N,)"""
    if goal is None:
        return np.asarray(sample.batch.reward, np.float64)
    degree = sample.degree[:, goal].astype(np.float64)
    return degree if np.isfinite(degree).all() else sample.truth[:, goal].astype(np.float64)


def _target_in_words(sample: Sample, goal: int | None, wanted: str) -> str:
    if goal is None:
        return "the task's reward"
    graded = bool(np.isfinite(sample.degree[:, goal]).all())
    return f"how near {wanted!r} is" if graded else f"whether {wanted!r} is met"


def measures(values: np.ndarray, truth: np.ndarray | None, target: np.ndarray, *, intervals: bool = True) -> Card:
    """Pearson, Spearman and EPIC against a target (N,), AUROC and EPIC against a truth (bool (N,)), with intervals."""
    asked: dict[str, tuple[Any, np.ndarray]] = {
        "pearson": (distances.pearson, target),
        "spearman": (distances.spearman, target),
    }
    if truth is not None:
        asked |= {"auroc": (distances.auroc, truth)}
    found: Card = {"epic": distances.epic(values, target)}
    if truth is not None:
        found["epic_goal"] = distances.epic(values, truth)
    for name, (function, other) in asked.items():
        found[name] = function(values, other)
        if intervals:
            found[f"{name}_interval"] = distances.interval(function, values, other)
    if intervals:  # EPIC falls as Pearson rises
        found["epic_interval"] = tuple(math.sqrt((1 - rho) / 2) for rho in found["pearson_interval"][::-1])
    return found


def _notes(subject: Subject) -> list[str]:
    notes = list(subject.reward.notes())
    if subject.passes:
        notes.append(f"saw the sample {subject.passes} times in update before it was asked")
    elif subject.learns and subject.reward.role == "bonus":
        notes.append("knows nothing yet: this is what it pays at the very start (warm=1 lets it learn from the sample)")
    elif subject.learns and subject.reward.state_dict():
        notes.append("as it was built: it has learnt nothing from the sample (warm=1 lets it)")
    if subject.stream.has_memory:
        notes.append("remembers the episode: scattered states are episodes of one step to it")
    return notes


def landscape(subject: Subject, target: np.ndarray) -> Card | None:
    """Reward and truth along the family's axis; None without one."""
    rows = ~subject.sample.counted
    if not rows.any():
        return None
    place, values = subject.sample.place[rows], subject.values[rows]
    return {"axis": subject.sample.axis, "x": place.tolist(), "reward": values.tolist(), "truth": target[rows].tolist()}


def nearest_phrases(subject: Subject, count: int = 3) -> list[tuple[str, float]]:
    """The phrases that the model was taught which are nearest to the goal, with their similarity."""
    if subject.taught is None or not _text(subject, "goal"):
        return []
    phrases, meanings = subject.taught
    encoder: Any = subject.reward.encoder  # type: ignore[attr-defined]
    similar = meanings @ encoder.text([subject.config.goal.split("|")[0]])[0]  # type: ignore[attr-defined]
    return [(phrases[i], float(similar[i])) for i in np.argsort(-similar)[:count]]


def relative_spread(subject: Subject) -> float | None:
    """The reward's 5 to 95 % range over that of the widest tenth of the phrases its model was taught.

    Of a contrast, before it is calibrated. None for other rewards, and where a model does not say what it was taught.
    """
    direction = getattr(subject.reward, "direction", None)
    plain = subject.name == "clip" and getattr(subject.config, "threshold", None) is None
    if subject.taught is None or (direction is None and not plain):
        return None
    counted = subject.sample.counted
    seen = np.asarray(subject.batch.extras[str(subject.reward.embedding)], np.float32)[counted]
    values = subject.values[counted] if direction is None else seen @ direction
    low, high = np.quantile(seen @ subject.taught[1].T, [0.05, 0.95], axis=0)
    return float(np.subtract(*np.quantile(values, [0.95, 0.05])) / max(np.quantile(high - low, 0.9), 1e-9))


def speed(subject: Subject) -> dict[str, float]:
    """Rows a second of rendering, embedding and scoring, and bytes that a transition keeps; 0 where nothing was timed.

    Embeddings and pictures that come from the folder take no time, so they are not measured again.
    """
    n, sample = len(subject.values), subject.sample
    frame = sample.batch.frame
    reads = "frame" in subject.reward.requires
    obs = sum(x.nbytes for x in _leaves(sample.batch.next_obs)) / n
    seen = subject.batch.extras.get(str(subject.reward.embedding))
    kept = 0.0 if not reads else (seen.nbytes if seen is not None else frame.nbytes if frame is not None else 0) / n

    def rate(seconds: float) -> float:
        return n / seconds if seconds > 0 else 0.0

    return {
        "render": rate(sample.seconds["render"]) if reads else 0.0,
        "step": rate(sample.seconds["step"]),
        "embed": rate(subject.seconds["embed"]),
        "score": rate(subject.seconds["score"]),
        "bytes": obs + kept,
        "bytes_with_frames": obs + (frame.nbytes / n if reads and frame is not None else 0.0),
    }


def _leaves(obs: Any) -> list[np.ndarray]:
    return [leaf for part in obs.values() for leaf in _leaves(part)] if isinstance(obs, dict) else [obs]


def controls(subject: Subject, truth: np.ndarray | None, target: np.ndarray) -> list[Card]:
    """The same reward with sentences that should not work, and with weights that learnt nothing."""
    if subject.reward.role == "bonus" or not _text(subject, "goal"):  # a bonus asks elsewhere what its sentence means
        return []
    opposite = _text(subject, "negative")
    goal = subject.config.goal  # type: ignore[attr-defined]
    variants: list[tuple[str, Card]] = []
    for kind, (one, other) in (("gibberish", GIBBERISH), ("off topic", OFF_TOPIC)):
        variants.append((kind, {"goal": one, **({"negative": other} if opposite else {})}))
    if opposite:
        variants.append(("negated", {"goal": subject.config.negative, "negative": goal}))  # type: ignore[attr-defined]
    else:
        variants.append(("negated", {"goal": " | ".join(f"not {part.strip()}" for part in goal.split("|"))}))
    if _text(subject, "baseline"):
        plain = {"alpha": 0.0} if hasattr(subject.config, "alpha") else {}
        variants.append(("baseline alone", {"goal": subject.config.baseline, **plain}))  # type: ignore[attr-defined]
    if subject.reward.control:
        variants.append(("untrained", dict(subject.reward.control)))
    counted = subject.sample.counted
    rows: list[Card] = []
    for kind, changes in variants:
        sentence = changes.get("goal", goal)
        try:
            values = subject.again(**changes).values[counted]
        except ValueError as error:  # a control that cannot be built says so
            rows.append({"kind": kind, "sentence": sentence, "error": str(error)})
            continue
        met = None if truth is None else truth[counted]
        low, high = np.quantile(values, [0.05, 0.95])
        found = measures(values, met, target[counted], intervals=False)
        rows.append({"kind": kind, "sentence": sentence, "low": float(low), "high": float(high), **found})
    return rows


def starc(subject: Subject, target: np.ndarray, world: World | None, goal: int | None) -> Card | None:
    """STARC distance to the target: exact in a world that was walked through, else on the sample's distribution."""
    if subject.stream.has_memory:
        return None
    if world is not None:
        table = _tables(subject.score(subject.embed(world)), world)
        other, transition = _tables(_target(world.sample, goal), world), _transition(world)
        distance = distances.starc(table, other, transition, gamma=GAMMA)
        return {"distance": distance, "kind": f"exact, {len(world.leads)} states"}
    sample = subject.sample
    rows = np.isin(sample.source, (0, 1))  # uniform actions
    batch = sample.batch[rows]
    now, after = distances.state_features(batch)
    both = np.stack([subject.values[rows], target[rows]], 1)
    fitted = distances.fit_canonical(both, now, after, batch.terminated, **FITTED)

    def distance_of(first: np.ndarray, second: np.ndarray) -> float:
        return distances.starc_distance(first, second)

    low, high = distances.interval(distance_of, fitted[:, 0], fitted[:, 1])
    value = distances.starc_distance(fitted[:, 0], fitted[:, 1])
    return {
        "distance": value,
        "distance_interval": (low, high),
        "kind": "on the sample's distribution, discount 0.9, values fitted",
    }


def _tables(values: np.ndarray, world: World) -> np.ndarray:
    """Values of the rows of a world as a table (S + 1, A, S + 1); the last state is the end."""
    states, actions = world.leads.shape
    table = np.zeros((states + 1, actions, states + 1))
    s, a = np.indices(world.leads.shape)
    table[s, a, world.leads] = values.reshape(states, actions)
    return table


def _transition(world: World) -> np.ndarray:
    table = _tables(np.ones(world.leads.size), world)
    table[-1, :, -1] = 1
    return table


def canonical_epic(subject: Subject, target: np.ndarray) -> Card | None:
    """EPIC distance to the target, canonicalised by samples where the reward reads more than the next state.

    None where it cannot be asked about transitions that nobody made: it remembers, or repeats the task's reward.
    """
    reads = subject.reward.requires
    counted = subject.sample.counted
    if (
        not reads & {"obs", "action", "obs_frame", "obs_text", "obs_signals", "reward"}
        and not subject.stream.has_memory
    ):
        return {"distance": distances.epic(subject.values[counted], target[counted]), "kind": "a reward of the state"}
    if subject.stream.has_memory or reads & {"reward", "obs_frame", "obs_text", "obs_signals"}:
        return None
    rng = np.random.default_rng(subject.seed)
    rows = rng.choice(np.flatnonzero(counted), min(ROWS, int(counted.sum())), replace=False)
    batch = subject.batch[rows].replace(frame=None, obs_frame=None)
    if "frame" in reads and subject.reward.embedding is None:
        return None
    values = distances.epic_canonical(subject.score, batch, gamma=GAMMA, samples=DRAWS, rng=rng)
    return {
        "distance": distances.epic(values, target[rows]),
        "kind": f"canonicalised with {len(rows)} x {DRAWS} made-up transitions",
    }


def verdict(made: Card) -> tuple[str, list[str]]:
    """One of four words, and why; the rules are in this file's first lines."""
    low, high = made["range"][0], made["range"][-1]
    if not np.isfinite([low, high]).all() or high - low <= 1e-9:
        return DO_NOT, [f"it pays {low:.3g} everywhere"]
    if made["role"] == "bonus" or made["truth"] is None:
        why = "a bonus has no truth to be held against; only training shows whether it helps"
        if made["role"] == "bonus":
            return USABLE, [f"not constant ({made['nonzero']:.0%} of the rows are paid something); {why}"]
        return NOT_JUDGED, ["nobody can tell the goals of this environment; compared with the task's reward instead"]
    truth, spread = made["truth"], made["spread"]
    wrong, doubts = [], []
    if truth["spearman_interval"][1] < 0:
        wrong.append(f"it falls where the truth rises (Spearman {truth['spearman']:.2f})")
    area = truth["auroc"]
    if np.isfinite(area) and area < CHANCE:
        wrong.append(f"it does not tell goal states from others (AUROC {area:.2f}, below {CHANCE})")
    elif np.isfinite(area) and area < GOOD:
        doubts.append(f"AUROC {area:.2f} is below {GOOD}")
    elif not np.isfinite(area):
        doubts.append("no sampled state meets the goal, or all do, so there is no AUROC")
    if spread is not None and spread < NARROW:
        wrong.append(f"it is almost flat ({spread:.1%} of the spread of the model's own phrases)")
    elif spread is not None and spread < SLIM:
        doubts.append(f"its spread is {spread:.0%} of that of the model's own phrases")
    nonsense = [row for row in made["controls"] if row["kind"] == "gibberish" and "spearman" in row]
    if nonsense and truth["spearman"] <= nonsense[0]["spearman"] + 0.02:
        wrong.append(f"{nonsense[0]['sentence']!r} does as well (Spearman {nonsense[0]['spearman']:.2f})")
    doubts += [note.split(";")[0] for note in made["notes"] if UNFAMILIAR in note]
    if made["blank"] >= BLANK:
        doubts.append(f"{made['blank']:.0%} of the frames have one single colour")
    if wrong:
        return DO_NOT, wrong + doubts
    if doubts:
        return WEAK, doubts
    return USABLE, [f"AUROC {area:.2f}, Spearman {truth['spearman']:.2f}"]


def pictures(subject: Subject, count: int = 8) -> dict[str, list[int]]:
    """Rows of the highest and the lowest scores whose pictures differ; empty where nothing was drawn."""
    frames = subject.sample.batch.frame
    if frames is None:
        return {"highest": [], "lowest": []}
    order = np.flatnonzero(subject.sample.counted)
    order = order[np.argsort(-subject.values[order], kind="stable")]
    chosen = {}
    for name, rows in (("highest", order), ("lowest", order[::-1])):
        seen: dict[bytes, int] = {}
        for row in rows:
            seen.setdefault(frames[row].tobytes(), int(row))
            if len(seen) == count:
                break
        chosen[name] = list(seen.values())
    return chosen
