"""The numbers of a report card: a reward's scores on a sample of transitions, beside what is true of these.

Rules of the verdict, for a reward that has a goal; the first list that fits decides. The thresholds are this file's own
choice, checked against sentences known to be good and bad (`benchmarks bad-prompts`, `compare-verdicts`).

    do not train with this   it is constant; its interval of Spearman's correlation with the truth lies below 0; its
                             AUROC is below 0.7; its scores spread less than 5 % as far as those of the widest of the
                             model's own phrases; or a sentence without meaning correlates as well with the truth
    weak                     its AUROC is below 0.85; its spread is below 15 %; a fifth of the frames or more are blank;
                             or the model was not trained on such sentences, and measurement does not say that they work
                             all the same: an interval of the AUROC that lies above 0.85 and, where a graded truth is
                             known, a Spearman's correlation with it of 0.7 or more; or another reading contradicts it
    usable                   else; words that the model lacks are then a note

A model may read a sentence as the goal that does not mean it. Two other readings of it are scored, too: the sentence
with each word that the model was never taught exchanged for the nearest one that it was, whose AUROC must not be below
0.7 (a pole that "toppled" may be read as upright, one that is "falling" is not); and its clauses, none of which may
have an AUROC below 0.3 at half of its spread ("the flag is at the peak and the car is in the valley").

Intervals resample rows as if they were independent; those of episodes are not, so they are a little too narrow.

A bonus has no truth to be compared with: it is usable where it is not constant, and only training shows whether it
helps. The same holds for a goal reward in an environment without known goals (`not judged`).
"""

import copy
import math
import re
from typing import Any

import numpy as np

import rewards
from agents.effective_horizon import EffectiveHorizon
from agents.effective_horizon import effective_horizon as look_ahead
from envs import recording
from envs.clones import Clones
from envs.make import goals
from rewards import compare as distances
from rewards.base import Reward, RewardConfig
from rewards.exploration.learned import IMAGE, Layout
from rewards.mix.mix import Mix, Stream
from runners.compare import finite
from runners.compare.candidate import GAMMA, Candidate, Card
from runners.compare.epic import FITTED, epic
from runners.compare.sample import Sample, load_or_enumerate
from runners.run.config import UsageError, flatten

USABLE, WEAK, DO_NOT, NOT_JUDGED = "usable", "weak", "do not train with this", "not judged"
CHANCE, GOOD = 0.7, 0.85  # AUROC
SIMILAR = 0.7  # Spearman's correlation with a graded truth
NARROW, SLIM = 0.05, 0.15  # spread over that of the model's own phrases
BLANK = 0.2
SHORTEST = 5  # steps of an episode whose order is looked at
GIBBERISH = ("qwv zzxk blorp", "frumious jub tove")
OFF_TOPIC = ("a bowl of noodle soup", "the president gave a speech")
CLAUSES = re.compile(r"[,;]|\b(?:and|but|while|whereas)\b", re.IGNORECASE)
UNFAMILIAR = "is not like what this model was taught"
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
HORIZON_BUDGET, HORIZON_TRIES = 300_000, 64  # simulator steps for each k, m and episode; the largest m


def card(candidate: Candidate, goal: int | None) -> Card:
    """Everything that is known of a reward before training; `goal` is its index among the environment's, if any."""
    sample, values, counted = candidate.sample, candidate.values, candidate.sample.counted
    truth = None if goal is None else sample.truth[:, goal]
    target, graded = _target(sample, goal)
    name = "" if goal is None else goals(candidate.spec.env)[goal].name
    caption = f"how near {name!r} is" if graded else f"whether {name!r} is met"
    landscape = {"x": sample.place, "reward": values, "truth": target}  # along the axis of the environment's family
    found: Card = {
        "name": candidate.name,
        "role": candidate.reward.role,
        "target": "the task's reward" if goal is None else caption,
        "goal": goal,
        "graded": graded,
        "sentences": {f: text for f in ("goal", "negative", "baseline") if (text := candidate.sentence(f))},
        "rows": int(counted.sum()),
        "about": sample.about(),
        "notes": _notes(candidate),
        "blank": float(sample.blank[counted].mean()),
        "range": [float(q) for q in np.quantile(values[counted], QUANTILES)],
        "nonzero": float((values[counted] != 0).mean()),
        "truth": None if truth is None else measures(values[counted], truth[counted], target[counted]),
        "met": None if truth is None else float(truth[counted].mean()),
        "task": measures(values[counted], None, sample.batch.reward[counted]),
        "landscape": None if counted.all() else {key: x[~counted].tolist() for key, x in landscape.items()},
        "axis": sample.axis,
        "phrases": _nearest_phrases(candidate),
        "spread": _relative_spread(candidate),
        "speed": _speed(candidate),
        "controls": _controls(candidate, truth, target),
        "readings": [] if truth is None else _readings(candidate, truth[counted]),
        "starc": starc(candidate, target, goal),
        "epic": epic(candidate, target, goal),
        "order": None if truth is None else order(candidate.sample, values, truth),
        "audit": audit(candidate, goal),
    }
    found["verdict"], found["reasons"] = verdict(found)
    return found


def _target(sample: Sample, goal: int | None) -> tuple[np.ndarray, bool]:
    """The truth float64 (N,), and whether it is graded; the task's own reward where there is no goal."""
    if goal is None:
        return np.asarray(sample.batch.reward, np.float64), True
    degree = sample.degree[:, goal].astype(np.float64)
    graded = bool(np.isfinite(degree).all())
    return degree if graded else sample.truth[:, goal].astype(np.float64), graded


def measures(values: np.ndarray, truth: np.ndarray | None, target: np.ndarray, *, intervals: bool = True) -> Card:
    """Pearson and Spearman against a target (N,), AUROC against a truth (bool (N,)), with intervals."""
    statistics: dict[str, tuple[Any, np.ndarray]]
    statistics = {"pearson": (distances.pearson, target), "spearman": (distances.spearman, target)}
    found: Card = {}
    if truth is not None:
        statistics["auroc"] = (distances.auroc, truth)
    for name, (function, other) in statistics.items():
        found[name] = function(values, other)
        if intervals:
            found[f"{name}_interval"] = distances.interval(function, values, other)
    return found


def _notes(candidate: Candidate) -> list[str]:
    notes = list(candidate.reward.notes())
    if candidate.passes:
        notes.append(f"trained on the sample for {candidate.passes} passes of update before it was scored")
    elif candidate.learns and candidate.reward.role == "bonus":
        notes.append("untrained: this is the bonus at the very start (warm=1 lets it learn from the sample)")
    elif candidate.learns and candidate.reward.state_dict():
        notes.append("as it was built: it has learnt nothing from the sample (warm=1 lets it)")
    if candidate.stream.has_memory:
        notes.append("has a memory of the episode: scattered states are episodes of one step to it")
    return notes


def _nearest_phrases(candidate: Candidate, count: int = 3) -> list[tuple[str, float]]:
    """The phrases that the model was trained on which are nearest to the goal, with their similarity."""
    goal = candidate.sentence("goal")
    if candidate.phrases is None or not goal:
        return []
    phrases, meanings = candidate.phrases
    encoder: Any = candidate.reward.encoder  # type: ignore[attr-defined]
    similar = meanings @ encoder.text([goal.split("|")[0]])[0]
    return [(phrases[i], float(similar[i])) for i in np.argsort(-similar)[:count]]


def _relative_spread(candidate: Candidate) -> float | None:
    """The reward's 5 to 95 % range (a contrast's uncalibrated) over that of the widest tenth of its model's phrases."""
    direction = getattr(candidate.reward, "direction", None)
    plain = candidate.name == "clip" and getattr(candidate.config, "threshold", None) is None
    if candidate.phrases is None or (direction is None and not plain):
        return None
    counted = candidate.sample.counted
    seen = np.asarray(candidate.batch.extras[str(candidate.reward.embedding)], np.float32)[counted]
    values = candidate.values[counted] if direction is None else seen @ direction
    low, high = np.quantile(seen @ candidate.phrases[1].T, [0.05, 0.95], axis=0)
    return float(np.subtract(*np.quantile(values, [0.95, 0.05])) / max(np.quantile(high - low, 0.9), 1e-9))


def _speed(candidate: Candidate) -> dict[str, float]:
    """Rows a second of rendering, embedding and scoring, 0 for what came from files; bytes that a transition keeps."""
    n, sample = len(candidate.values), candidate.sample
    reads = "frame" in candidate.reward.requires
    frame = sample.batch.frame if reads else None
    seen = candidate.batch.extras.get(str(candidate.reward.embedding)) if reads else None
    seconds = {"step": sample.seconds["step"], "render": sample.seconds["render"] * reads, **candidate.seconds}
    obs = sum(x.nbytes for x in flatten({"obs": sample.batch.next_obs}).values()) / n
    frames = 0.0 if frame is None else frame.nbytes / n
    kept = obs + (frames if seen is None else seen.nbytes / n)
    rates = {name: n / spent if spent > 0 else 0.0 for name, spent in seconds.items()}
    return {**rates, "bytes": kept, "bytes_with_frames": obs + frames}


def _controls(candidate: Candidate, truth: np.ndarray | None, target: np.ndarray) -> list[Card]:
    """The same reward with sentences that should not work, and with untrained weights."""
    goal, negative, baseline = map(candidate.sentence, ("goal", "negative", "baseline"))
    if candidate.reward.role == "bonus" or not goal:  # the goal of a bonus has another meaning
        return []
    opposite = negative or " | ".join(f"not {part.strip()}" for part in goal.split("|"))
    pairs = {"gibberish": GIBBERISH, "off topic": OFF_TOPIC, "negated": (opposite, goal)}
    fields = ("goal", "negative") if negative else ("goal",)
    variants: dict[str, Card] = {kind: dict(zip(fields, pair)) for kind, pair in pairs.items()}
    if baseline:
        plain = {"alpha": 0.0} if hasattr(candidate.config, "alpha") else {}
        variants["baseline alone"] = {"goal": baseline, **plain}
    if candidate.reward.control:
        variants["untrained"] = dict(candidate.reward.control)
    counted = candidate.sample.counted
    rows: list[Card] = []
    for kind, changes in variants.items():
        row: Card = {"kind": kind, "sentence": changes.get("goal", goal)}
        try:
            again = candidate.again(**changes).values
            values = again[counted]
        except ValueError as error:  # a control that cannot be built has its error as its result
            rows.append({**row, "error": str(error)})
            continue
        low, high = np.quantile(values, [0.05, 0.95]).tolist()
        met = None if truth is None else truth[counted]
        met_in_time = None if truth is None else order(candidate.sample, again, truth)
        row |= {"order": met_in_time["reached"]} if met_in_time else {}
        rows.append({**row, "low": low, "high": high, **measures(values, met, target[counted], intervals=False)})
    return rows


def order(sample: Sample, values: np.ndarray, truth: np.ndarray) -> Card | None:
    """Does the score rise with time in episodes that reach the goal? None where none of the sample does.

    `reached`: Spearman's correlation of the score with time until the goal is first met, the mean over `episodes`;
    `failed`: the same in whole episodes that never meet it (NaN for none); `cut`: the share of the former whose score
    is higher at the goal than at half of the way. (Value-order correlation: Ma et al. 2024, GVL, arXiv 2411.04549.)
    """
    rows = np.flatnonzero(np.isin(sample.source, (1, 2)))
    found: dict[str, list[float]] = {"reached": [], "failed": [], "cut": []}
    for part in recording.episodes(sample.batch[rows]) if len(rows) else ():
        score, met = values[rows][part], np.flatnonzero(truth[rows][part])
        score = score[: met[0] + 1] if len(met) else score
        if len(score) < SHORTEST:
            continue
        found["reached" if len(met) else "failed"].append(distances.spearman(score, np.arange(len(score))))
        if len(met):
            found["cut"].append(float(score[-1] > score[len(score) // 2]))
    if not found["reached"]:
        return None
    means = {name: float(np.mean(each)) if each else math.nan for name, each in found.items()}
    return {**means, "episodes": len(found["reached"])}


def _readings(candidate: Candidate, truth: np.ndarray) -> list[Card]:
    """The goal in words that the model was taught, and its clauses: AUROC, and spread over that of the goal."""
    goal = candidate.sentence("goal")
    encoder: Any = getattr(candidate.reward, "encoder", None)
    if getattr(encoder, "trained_on", None) is None or "|" in goal or candidate.reward.role == "bonus":
        return []
    clauses = [clause.strip() for clause in CLAUSES.split(goal) if clause.strip()]
    others = {"in words it was taught": [encoder.reworded(goal)], "clause": clauses if len(clauses) > 1 else []}
    counted, found = candidate.sample.counted, []
    spread = max(float(np.subtract(*np.quantile(candidate.values[counted], [0.95, 0.05]))), 1e-9)
    for kind, sentence in ((kind, text) for kind, texts in others.items() for text in texts if text != goal.lower()):
        values = candidate.again(goal=sentence).values[counted]
        relative = float(np.subtract(*np.quantile(values, [0.95, 0.05]))) / spread
        area = distances.auroc(values, truth)
        found.append({"kind": kind, "sentence": sentence, "auroc": area, "spread": relative})
    return found


def starc(candidate: Candidate, target: np.ndarray, goal: int | None) -> Card | None:
    """STARC distance to the target: exact where states can be enumerated, else on the sample's distribution."""
    if candidate.stream.has_memory:
        return None
    if (mdp := load_or_enumerate(candidate.spec)) is not None:
        values = candidate.score(candidate.embedded(mdp.sample.batch, f"{candidate.spec.key}-states"))
        tables = mdp.table(values), mdp.table(_target(mdp.sample, goal)[0])
        distance = distances.starc(*tables, mdp.transition, gamma=GAMMA)
        return {"distance": distance, "kind": f"exact, {len(mdp.successors)} states"}
    rows = candidate.sample.uniform
    batch = candidate.sample.batch[rows]
    both = np.stack([candidate.values[rows], target[rows]], 1)
    fitted = distances.fit_canonical(both, *distances.state_features(batch), batch.terminated, **FITTED).T
    return {
        "distance": distances.starc_distance(*fitted),
        "distance_interval": distances.interval(distances.starc_distance, *fitted),
        "kind": "on the sample's distribution, discount 0.9, values fitted",
    }


def audit(candidate: Candidate, goal: int | None) -> Card | None:
    """How easily the best actions under the reward flip, and how early it tells them; None without a finite model."""
    sample, (space, actions) = candidate.sample, candidate.spaces
    try:
        layout = Layout(space, [], candidate.name, channels=0, smallest_image=IMAGE)
        if candidate.stream.has_memory or layout.images:
            return None
        if (mdp := load_or_enumerate(candidate.spec)) is not None:
            model, sample = finite.enumerated(mdp, layout), mdp.sample
            values = candidate.score(candidate.embedded(sample.batch, f"{candidate.spec.key}-states"))
            target = _target(sample, goal)[0]
        else:
            rows = sample.uniform
            model = finite.clustered(sample.batch[rows], layout, actions, seed=candidate.seed)
            values, target = candidate.values[rows], _target(sample, goal)[0][rows]
    except ValueError:
        return None
    own, task = model.table(values), model.table(target)
    return {
        "tied": finite.ties(own, model.transition, GAMMA),
        "tied_target": finite.ties(task, model.transition, GAMMA),
        "moved": finite.moved(own, model.transition, GAMMA),
        "informativeness": finite.informativeness(own, task, model.transition, GAMMA),
        "kind": f"{'exact' if model.exact else 'clustered'}, {len(model.states)} states",
    }


def effective_horizon(
    env: str,
    k: int,
    solved: float | None,
    reward: Reward | None = None,
    config: RewardConfig | None = None,
    options: dict[str, Any] | None = None,
) -> EffectiveHorizon:
    """The least look-ahead, up to k, that solves `env` under a reward: a bonus beside the task, a goal alone.

    `solved` is the task's return that counts, None for the environment's own success; a `reward` of None is the task's
    own; `config` has its weight and shape. A UsageError where actions are not discrete, or states cannot be copied.
    """
    scorer = None if reward is None else _mix(reward, config)
    need = scorer.requires if scorer else ()
    modalities: dict[str, Any] = {name: True for name in ("text", "signals") if name in need}
    modalities |= {"frame_size": scorer.frame_size} if scorer and "frame" in need else {}
    try:
        clones = Clones(env, **(options or {}), **modalities)
        limits = {"k_max": k, "m_max": HORIZON_TRIES, "budget": HORIZON_BUDGET}
        return look_ahead(clones, scorer, solved=solved, **limits)
    except ValueError as error:
        raise UsageError(f"horizon={k} cannot be found: {error}") from None


def _mix(reward: Reward, config: RewardConfig | None) -> Mix:
    """As a run would use it, weight, shape and scale included: the card compares bare scores."""
    # A copy, as the stream's discount would stay with the reward that the rest of the card asks.
    asked = copy.copy(reward)
    asked.config = config or reward.config
    stream = Stream("asked", asked, gamma=1.0)
    asked.config = reward.config
    if reward.role == "goal":
        return Mix([stream])
    cls = rewards.get("task")
    task = cls(cls.Config(), reward.observation_space, reward.action_space)
    return Mix([Stream("task", task, gamma=1.0), stream])


def horizon_text(found: EffectiveHorizon, task: EffectiveHorizon) -> str:
    """The card's sentence about two effective horizons."""
    both = ["not solved" if x.k is None else f"k={x.k} with m={x.m} (H={x.value:.2f})" for x in (found, task)]
    change = "easier" if found.value < task.value else "harder" if found.value > task.value else ""
    return f"{both[0]}; the task's own reward: {both[1]}" + f": it made the task {change}" * bool(change)


def verdict(found: Card) -> tuple[str, list[str]]:
    """One of four verdicts, and the reasons; the rules are in this file's first lines."""
    low, *_, high = found["range"]
    if not np.isfinite([low, high]).all() or high - low <= 1e-9:
        return DO_NOT, [f"it is {low:.3g} everywhere"]
    if found["role"] == "bonus":
        why = "a bonus has no truth to be compared with; only training shows whether it helps"
        return USABLE, [f"not constant ({found['nonzero']:.0%} of the rows are not zero); {why}"]
    if found["truth"] is None:
        return NOT_JUDGED, ["no goals are known for this environment; compared with the task's reward instead"]
    truth, spread, area = found["truth"], found["spread"], found["truth"]["auroc"]
    wrong, doubts = [], []
    if truth["spearman_interval"][1] < 0:
        wrong.append(f"it falls where the truth rises (Spearman {truth['spearman']:.2f})")
    if not np.isfinite(area):
        doubts.append("no sampled state meets the goal, or all do, so there is no AUROC")
    elif area < CHANCE:
        wrong.append(f"it does not separate goal states from others (AUROC {area:.2f}, below {CHANCE})")
    elif area < GOOD:
        doubts.append(f"AUROC {area:.2f} is below {GOOD}")
    if spread is not None and spread < NARROW:
        wrong.append(f"it is almost flat ({spread:.1%} of the spread of the model's own phrases)")
    elif spread is not None and spread < SLIM:
        doubts.append(f"its spread is {spread:.0%} of that of the model's own phrases")
    nonsense = [row for row in found["controls"] if row["kind"] == "gibberish" and "spearman" in row]
    if nonsense and truth["spearman"] <= nonsense[0]["spearman"] + 0.02:
        wrong.append(f"{nonsense[0]['sentence']!r} does as well (Spearman {nonsense[0]['spearman']:.2f})")
    works = truth["auroc_interval"][0] >= GOOD and not (found["graded"] and truth["spearman"] < SIMILAR)
    doubts += [note.split(";")[0] for note in found["notes"] if UNFAMILIAR in note and not works]
    for other in found["readings"]:
        if other["kind"] != "clause" and other["auroc"] < CHANCE:
            doubts.append(f"said {other['kind']}, {other['sentence']!r}, it does not work (AUROC {other['auroc']:.2f})")
        elif other["auroc"] < 1 - CHANCE and other["spread"] >= 0.5:
            doubts.append(f"{other['sentence']!r} contradicts it (AUROC {other['auroc']:.2f})")
    if found["blank"] >= BLANK:
        doubts.append(f"{found['blank']:.0%} of the frames have one single colour")
    if wrong or doubts:
        return DO_NOT if wrong else WEAK, wrong + doubts
    return USABLE, [f"AUROC {area:.2f}, Spearman {truth['spearman']:.2f}"]
