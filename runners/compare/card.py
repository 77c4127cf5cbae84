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

A reward is weak, too, where the untrained model or a sentence without meaning does better.

A model may read a sentence as the goal that does not mean it. Two other readings of it are scored, too: the sentence
with each word that the model was never taught exchanged for the nearest one that it was, whose AUROC must not be below
0.7 (a pole that "toppled" may be read as upright, one that is "falling" is not); and its clauses, none of which may
have an AUROC below 0.3 at half of its spread ("the flag is at the peak and the car is in the valley").

Intervals resample rows as if they were independent; those of episodes are not, so they are a little too narrow.

A bonus has no truth to be compared with: it is usable where it is not constant, and only training shows whether it
helps. The same holds for a goal reward in an environment without known goals (`not judged`), unless its words are
unknown to the model, or a control follows the task's own reward better: then it is weak.
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
from runners.compare.sample import FiniteMDP, Sample, load_or_enumerate
from runners.run.config import UsageError, Values, flatten

USABLE = "usable"
WEAK = "weak"
DO_NOT = "do not train with this"
NOT_JUDGED = "not judged"
# The least AUROC, spread (over that of the model's own phrases) and Spearman's correlation with a graded truth.
MIN_AUROC = 0.7
MIN_PHRASE_SPREAD = 0.05
USABLE_AUROC = 0.85
USABLE_PHRASE_SPREAD = 0.15
USABLE_SPEARMAN = 0.7
# By how much a control has to be better to count as such.
CONTROL_MARGIN = 0.02
MAX_BLANK_SHARE = 0.2
# Steps of an episode whose order is looked at.
MIN_ORDERED_STEPS = 5
GIBBERISH = ("qwv zzxk blorp", "frumious jub tove")
OFF_TOPIC = ("a bowl of noodle soup", "the president gave a speech")
CLAUSES = re.compile(r"[,;]|\b(?:and|but|while|whereas)\b", re.IGNORECASE)
UNFAMILIAR = "is not like what this model was taught"
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
# Simulator steps for each k, m and episode of an effective horizon; the largest m.
HORIZON_BUDGET = 300_000
HORIZON_TRIES = 64


def card(candidate: Candidate, goal: int | None) -> Card:
    """Everything that is known of a reward before training; `goal` is its index among the environment's, if any."""
    sample = candidate.sample
    counted = sample.counted
    values = candidate.values[counted]
    target, graded = _target(sample, goal)
    report = {
        "name": candidate.name,
        "role": candidate.reward.role,
        "target": "the task's reward",
        "goal": goal,
        "graded": graded,
        "sentences": {},
        "rows": int(counted.sum()),
        "about": sample.describe_sources(),
        "notes": _notes(candidate),
        "blank": float(sample.blank[counted].mean()),
        "range": np.quantile(values, QUANTILES).tolist(),
        "nonzero": float((values != 0).mean()),
        "truth": None,
        "met": None,
        "task": measures(values, None, sample.batch.reward[counted]),
        "landscape": None,
        "axis": sample.axis,
        "phrases": _nearest_phrases(candidate),
        "spread": _relative_spread(candidate),
        "speed": _speed(candidate),
        "readings": [],
        "starc": starc(candidate, target, goal),
        "epic": epic(candidate, target, goal),
        "order": None,
        "audit": audit(candidate, goal),
    }
    for field in ("goal", "negative", "baseline"):
        sentence = getattr(candidate.config, field, "")
        if isinstance(sentence, str) and sentence:
            report["sentences"][field] = sentence
    if not counted.all():
        # States along the axis of the environment's family.
        landscape = {"x": sample.place, "reward": candidate.values, "truth": target}
        report["landscape"] = {key: numbers[~counted].tolist() for key, numbers in landscape.items()}
    truth = None
    if goal is not None:
        truth = sample.truth[:, goal]
        name = goals(candidate.spec.env)[goal].name
        report |= {
            "target": f"how near {name!r} is" if graded else f"whether {name!r} is met",
            "truth": measures(values, truth[counted], target[counted]),
            "met": float(truth[counted].mean()),
            "readings": _readings(candidate, truth[counted]),
            "order": order(sample, candidate.values, truth),
        }
    report["controls"] = _controls(candidate, truth, target)
    report["verdict"], report["reasons"] = verdict(report)
    return report


def _target(sample: Sample, goal: int | None) -> tuple[np.ndarray, bool]:
    """The truth float64 (N,), and whether it is graded; the task's own reward where there is no goal."""
    if goal is None:
        return np.asarray(sample.batch.reward, np.float64), True
    degree = sample.degree[:, goal].astype(np.float64)
    if np.isfinite(degree).all():
        return degree, True
    return sample.truth[:, goal].astype(np.float64), False


def measures(values: np.ndarray, truth: np.ndarray | None, target: np.ndarray, *, intervals: bool = True) -> Card:
    """Pearson and Spearman against a target (N,), AUROC against a truth (bool (N,)), with intervals."""
    statistics: dict[str, tuple[Any, np.ndarray]] = {
        "pearson": (distances.pearson, target),
        "spearman": (distances.spearman, target),
    }
    if truth is not None:
        statistics["auroc"] = (distances.auroc, truth)
    numbers: Card = {}
    for name, (function, other) in statistics.items():
        numbers[name] = function(values, other)
        if intervals:
            numbers[f"{name}_interval"] = distances.interval(function, values, other)
    return numbers


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


def _nearest_phrases(candidate: Candidate) -> list[tuple[str, float]]:
    """The three phrases that the model was trained on which are nearest to the goal, with their similarity."""
    goal = candidate.sentence("goal")
    if candidate.phrases is None or not goal:
        return []
    phrases, embeddings = candidate.phrases
    # Of several sentences the first.
    first = goal.split("|")[0]
    similarity = embeddings @ candidate.encoder.text([first])[0]
    return [(phrases[i], float(similarity[i])) for i in np.argsort(-similarity)[:3]]


def _quantile_range(values: np.ndarray) -> Any:
    """From the 5 % quantile to the 95 % quantile of values (N,), or of each column (N, K)."""
    low, high = np.quantile(values, [0.05, 0.95], axis=0)
    return high - low


def _relative_spread(candidate: Candidate) -> float | None:
    """The reward's 5 to 95 % range (a contrast's uncalibrated) over that of the widest tenth of its model's phrases."""
    direction = getattr(candidate.reward, "direction", None)
    is_similarity = candidate.name == "clip" and candidate.config.threshold is None
    if candidate.phrases is None or (direction is None and not is_similarity):
        return None
    counted = candidate.sample.counted
    seen = np.asarray(candidate.batch.extras[str(candidate.reward.embedding)], np.float32)[counted]
    values = candidate.values[counted]
    if direction is not None:
        values = seen @ direction
    _, embeddings = candidate.phrases
    widest = np.quantile(_quantile_range(seen @ embeddings.T), 0.9)
    return float(_quantile_range(values) / max(widest, 1e-9))


def _speed(candidate: Candidate) -> dict[str, float]:
    """Rows a second of rendering, embedding and scoring, 0 for what came from files; bytes that a transition keeps."""
    sample = candidate.sample
    rows = len(candidate.values)
    seconds = {"step": sample.seconds["step"], "render": 0.0, **candidate.seconds}
    obs = sum(array.nbytes for array in flatten({"obs": sample.batch.next_obs}).values())
    speed = {"bytes": obs / rows, "bytes_with_frames": obs / rows}
    if "frame" in candidate.reward.requires:
        seconds["render"] = sample.seconds["render"]
        frame = sample.batch.frame
        frame_bytes = 0.0 if frame is None else frame.nbytes / rows
        speed["bytes_with_frames"] += frame_bytes
        # An embedding is kept instead of the frame.
        seen = candidate.batch.extras.get(str(candidate.reward.embedding))
        speed["bytes"] += frame_bytes if seen is None else seen.nbytes / rows
    for name, spent in seconds.items():
        speed[name] = rows / spent if spent > 0 else 0.0
    return speed


def _controls(candidate: Candidate, truth: np.ndarray | None, target: np.ndarray) -> list[Card]:
    """The same reward with sentences that should not work, and with untrained weights."""
    goal = candidate.sentence("goal")
    # The goal of a bonus has another meaning.
    if candidate.reward.role == "bonus":
        return []
    negative = candidate.sentence("negative")
    baseline = candidate.sentence("baseline")
    variants: dict[str, Card] = {}
    # A picture has no opposite in words.
    if goal:
        opposite = negative or " | ".join(f"not {part.strip()}" for part in goal.split("|"))
        for kind, pair in {"gibberish": GIBBERISH, "off topic": OFF_TOPIC, "negated": (opposite, goal)}.items():
            variants[kind] = {"goal": pair[0]}
            if negative:
                variants[kind]["negative"] = pair[1]
    if goal and baseline:
        variants["baseline alone"] = {"goal": baseline}
        if hasattr(candidate.config, "alpha"):
            variants["baseline alone"]["alpha"] = 0.0
    if getattr(candidate.config, "goal", "") and candidate.reward.control:
        variants["untrained"] = candidate.reward.control
    return [_control(candidate, kind, changes, truth, target) for kind, changes in variants.items()]


def _control(candidate: Candidate, kind: str, changes: Card, truth: np.ndarray | None, target: np.ndarray) -> Card:
    """The numbers of one control; one that cannot be built has its error as its result."""
    row = {"kind": kind, "sentence": changes.get("goal", candidate.sentence("goal"))}
    counted = candidate.sample.counted
    try:
        scores = candidate.with_settings(**changes).values
    except ValueError as error:
        return {**row, "error": str(error)}
    values = scores[counted]
    row["low"], row["high"] = np.quantile(values, [0.05, 0.95]).tolist()
    met = None
    if truth is not None:
        met = truth[counted]
        rise = order(candidate.sample, scores, truth)
        if rise:
            row["order"] = rise["reached"]
    return row | measures(values, met, target[counted], intervals=False)


def order(sample: Sample, values: np.ndarray, truth: np.ndarray) -> Card | None:
    """Does the score rise with time in episodes that reach the goal? None where none of the sample does.

    `reached`: Spearman's correlation of the score with time until the goal is first met, the mean over `episodes`;
    `failed`: the same in whole episodes that never meet it (NaN for none); `cut`: the share of the former whose score
    is higher at the goal than at half of the way. (Value-order correlation: Ma et al. 2024, GVL, arXiv 2411.04549.)
    """
    rows = np.flatnonzero(np.isin(sample.source, (1, 2)))
    if not len(rows):
        return None
    reached = []
    failed = []
    cut = []
    for part in recording.episodes(sample.batch[rows]):
        score = values[rows][part]
        met = np.flatnonzero(truth[rows][part])
        if len(met):
            score = score[: met[0] + 1]
        if len(score) < MIN_ORDERED_STEPS:
            continue
        rise = distances.spearman(score, np.arange(len(score)))
        if len(met):
            reached.append(rise)
            cut.append(float(score[-1] > score[len(score) // 2]))
        else:
            failed.append(rise)
    if not reached:
        return None
    return {
        "reached": float(np.mean(reached)),
        "failed": float(np.mean(failed)) if failed else math.nan,
        "cut": float(np.mean(cut)),
        "episodes": len(reached),
    }


def _readings(candidate: Candidate, truth: np.ndarray) -> list[Card]:
    """The goal in words that the model was taught, and its clauses: AUROC, and spread over that of the goal."""
    goal = candidate.sentence("goal")
    if candidate.phrases is None or not goal or "|" in goal or candidate.reward.role == "bonus":
        return []
    readings = [("in words it was taught", candidate.encoder.reword(goal))]
    clauses = list(filter(None, map(str.strip, CLAUSES.split(goal))))
    if len(clauses) > 1:
        readings += [("clause", clause) for clause in clauses]
    counted = candidate.sample.counted
    spread = max(float(_quantile_range(candidate.values[counted])), 1e-9)
    rows = []
    for kind, sentence in readings:
        if sentence != goal.lower():
            values = candidate.with_settings(goal=sentence).values[counted]
            area = distances.auroc(values, truth)
            relative_spread = float(_quantile_range(values)) / spread
            rows.append({"kind": kind, "sentence": sentence, "auroc": area, "spread": relative_spread})
    return rows


def _score_every_state(candidate: Candidate, goal: int | None) -> tuple[FiniteMDP, np.ndarray, np.ndarray] | None:
    """A small environment, and reward and target of its rows, float64 (S * A,); None where it cannot be enumerated."""
    mdp = load_or_enumerate(candidate.spec)
    if mdp is None:
        return None
    batch = candidate.embed_frames(mdp.sample.batch, f"{candidate.spec.key}-states")
    target, _ = _target(mdp.sample, goal)
    return mdp, candidate.score(batch), target


def starc(candidate: Candidate, target: np.ndarray, goal: int | None) -> Card | None:
    """STARC distance to the target: exact where states can be enumerated, else on the sample's distribution."""
    if candidate.stream.has_memory:
        return None
    exact = _score_every_state(candidate, goal)
    if exact is not None:
        mdp, values, target = exact
        distance = distances.starc(mdp.table(values), mdp.table(target), mdp.transition, gamma=GAMMA)
        return {"distance": distance, "kind": f"exact, {len(mdp.successors)} states"}
    rows = candidate.sample.uniform
    batch = candidate.sample.batch[rows]
    rewards_of_rows = np.stack([candidate.values[rows], target[rows]], 1)
    features = distances.state_features(batch)
    canonical = distances.fit_canonical(rewards_of_rows, *features, batch.terminated, **FITTED).T
    return {
        "distance": distances.starc_distance(*canonical),
        "distance_interval": distances.interval(distances.starc_distance, *canonical),
        "kind": "on the sample's distribution, discount 0.9, values fitted",
    }


def audit(candidate: Candidate, goal: int | None) -> Card | None:
    """How easily the best actions under the reward flip, and how early it tells them; None without a finite model."""
    space, actions = candidate.spaces
    try:
        layout = Layout(space, [], candidate.name, channels=0, smallest_image=IMAGE)
        if candidate.stream.has_memory or layout.images:
            return None
        exact = _score_every_state(candidate, goal)
        if exact is not None:
            mdp, values, target = exact
            model = finite.model_of_states(mdp, layout)
        else:
            rows = candidate.sample.uniform
            model = finite.model_of_clusters(candidate.sample.batch[rows], layout, actions, seed=candidate.seed)
            values = candidate.values[rows]
            target = _target(candidate.sample, goal)[0][rows]
    except ValueError:
        return None
    reward = model.table(values)
    task = model.table(target)
    kind = "exact" if model.exact else "clustered"
    return {
        "tied": finite.ties(reward, model.transition, GAMMA),
        "tied_target": finite.ties(task, model.transition, GAMMA),
        "moved": finite.share_moved_by_noise(reward, model.transition, GAMMA),
        "informativeness": finite.informativeness(reward, task, model.transition, GAMMA),
        "kind": f"{kind}, {len(model.states)} states",
    }


def effective_horizon(
    env: str,
    k: int,
    solved: float | None,
    reward: Reward | None = None,
    config: RewardConfig | None = None,
    options: Values | None = None,
) -> EffectiveHorizon:
    """The least look-ahead, up to k, that solves `env` under a reward: a bonus beside the task, a goal alone.

    `solved` is the task's return that counts, None for the environment's own success; a `reward` of None is the task's
    own; `config` has its weight and shape. A UsageError where actions are not discrete, or states cannot be copied.
    """
    scorer = None
    modalities: Values = {}
    if reward is not None:
        scorer = _mix(reward, config)
        modalities["frame_size"] = scorer.frame_size
        for name in scorer.requires & {"text", "signals"}:
            modalities[name] = True
    try:
        clones = Clones(env, **(options or {}), **modalities)
        return look_ahead(clones, scorer, solved=solved, k_max=k, m_max=HORIZON_TRIES, budget=HORIZON_BUDGET)
    except ValueError as error:
        raise UsageError(f"horizon={k} cannot be found: {error}") from None


def _mix(reward: Reward, config: RewardConfig | None) -> Mix:
    """As a run would use it, weight, shape and scale included: the card compares bare scores."""
    # A copy, as the stream's discount would stay with the reward that the rest of the card asks.
    scorer = copy.copy(reward)
    scorer.config = config or reward.config
    stream = Stream("asked", scorer, gamma=1.0)
    scorer.config = reward.config
    if reward.role == "goal":
        return Mix([stream])
    cls = rewards.get("task")
    task = cls(cls.Config(), reward.observation_space, reward.action_space)
    return Mix([Stream("task", task, gamma=1.0), stream])


def horizon_text(horizon: EffectiveHorizon, task: EffectiveHorizon) -> str:
    """The card's sentence about two effective horizons."""
    text = f"{_look_ahead_text(horizon)}; the task's own reward: {_look_ahead_text(task)}"
    if horizon.value < task.value:
        return f"{text}: it made the task easier"
    if horizon.value > task.value:
        return f"{text}: it made the task harder"
    return text


def _look_ahead_text(horizon: EffectiveHorizon) -> str:
    if horizon.k is None:
        return "not solved"
    return f"k={horizon.k} with m={horizon.m} (H={horizon.value:.2f})"


def verdict(report: Card) -> tuple[str, list[str]]:
    """One of four verdicts, and the reasons; the rules are in this file's first lines."""
    low, *_, high = report["range"]
    if not np.isfinite([low, high]).all() or high - low <= 1e-9:
        return DO_NOT, [f"it is {low:.3g} everywhere"]
    if report["role"] == "bonus":
        why = "a bonus has no truth to be compared with; only training shows whether it helps"
        return USABLE, [f"not constant ({report['nonzero']:.0%} of the rows are not zero); {why}"]
    truth = report["truth"]
    if truth is None:
        doubts = [note.split(";")[0] for note in report["notes"] if UNFAMILIAR in note]
        doubts += _controls_that_win(report, report["task"], "spearman")
        reason = "no goals are known for this environment; compared with the task's reward instead"
        return (WEAK if doubts else NOT_JUDGED), [*doubts, reason]
    wrong = []
    doubts = []
    if truth["spearman_interval"][1] < 0:
        wrong.append(f"it falls where the truth rises (Spearman {truth['spearman']:.2f})")
    area = truth["auroc"]
    if not np.isfinite(area):
        doubts.append("no sampled state meets the goal, or all do, so there is no AUROC")
    elif area < MIN_AUROC:
        wrong.append(f"it does not separate goal states from others (AUROC {area:.2f}, below {MIN_AUROC})")
    elif area < USABLE_AUROC:
        doubts.append(f"AUROC {area:.2f} is below {USABLE_AUROC}")
    spread = report["spread"]
    if spread is not None and spread < MIN_PHRASE_SPREAD:
        wrong.append(f"it is almost flat ({spread:.1%} of the spread of the model's own phrases)")
    elif spread is not None and spread < USABLE_PHRASE_SPREAD:
        doubts.append(f"its spread is {spread:.0%} of that of the model's own phrases")
    nonsense: Card = next((row for row in report["controls"] if row["kind"] == "gibberish"), {})
    if truth["spearman"] <= nonsense.get("spearman", -math.inf) + 0.02:
        wrong.append(f"{nonsense['sentence']!r} does as well (Spearman {nonsense['spearman']:.2f})")
    doubts += _doubts_about_words(report)
    doubts += _controls_that_win(report, truth, "auroc")
    if report["blank"] >= MAX_BLANK_SHARE:
        doubts.append(f"{report['blank']:.0%} of the frames have one single colour")
    if wrong:
        return DO_NOT, wrong + doubts
    if doubts:
        return WEAK, doubts
    return USABLE, [f"AUROC {area:.2f}, Spearman {truth['spearman']:.2f}"]


def _controls_that_win(report: Card, own: Card, measure: str) -> list[str]:
    """Where a reward that knows nothing does better than this one."""
    doubts = []
    for row in report["controls"]:
        value = row.get(measure, math.nan)
        if row["kind"] in ("gibberish", "untrained") and value > own[measure] + CONTROL_MARGIN:
            name = {"auroc": "AUROC", "spearman": "Spearman"}[measure]
            doubts.append(
                f"the control {row['kind']!r} does better ({name} {value:.2f}, this reward {own[measure]:.2f})"
            )
    return doubts


def _doubts_about_words(report: Card) -> list[str]:
    """Where the model may read the sentence in another way than it is meant."""
    truth = report["truth"]
    doubts = []
    separates = truth["auroc_interval"][0] >= USABLE_AUROC
    # Ranks of yes and no say little, so the correlation counts for a graded truth alone.
    ranks = not report["graded"] or truth["spearman"] >= USABLE_SPEARMAN
    if not (separates and ranks):
        for note in report["notes"]:
            if UNFAMILIAR in note:
                doubts.append(note.split(";")[0])
    for reading in report["readings"]:
        area = reading["auroc"]
        if reading["kind"] != "clause" and area < MIN_AUROC:
            words = f"said {reading['kind']}, {reading['sentence']!r}"
            doubts.append(f"{words}, it does not work (AUROC {area:.2f})")
        elif area < 1 - MIN_AUROC and reading["spread"] >= 0.5:
            doubts.append(f"{reading['sentence']!r} contradicts it (AUROC {area:.2f})")
    return doubts
