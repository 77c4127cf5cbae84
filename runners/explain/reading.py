"""What a policy reads, by hiding parts of the observation; and a small decision tree that imitates it.

A part is hidden by giving it the value that it has in another visited state, drawn at random: values that occur, in
combinations that may not. Parts are entries of a vector, cells of a grid that declares them (`parts` and
`shape_of_cells` of its space or of a wrapper), patches of an image. A part that never varied has no effect that could
be seen; parts that say the same hide for each other.
"""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.types import Obs
from lodestar.numerics.trees import Trees
from runners.explain.measures import SIDE
from runners.explain.policy import PolicyView

MANY = 64  # entries from which on they are hidden in blocks
REPEATS = 2  # draws of another state
DEPTH, LEAVES = 4, 10  # of the tree, at most


class Hidden(NamedTuple):
    """A part of the observation: `places` in its array `key`, ravelled; `cell` is (row, column) in a heat map."""

    label: str
    key: str
    places: np.ndarray
    cell: tuple[int, int] | None = None


def hidden_parts(space: Any, env: Any = None, names: tuple[str, ...] = (), key: str = "") -> list[Hidden]:
    """The parts of an observation; `names` are those of the entries of a vector."""
    if isinstance(space, spaces.Dict):
        return [part for name, one in space.spaces.items() for part in hidden_parts(one, key=name)]
    everything, before = np.arange(int(np.prod(space.shape or ()))), f"{key}: " if key else ""
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3:
        place = everything.reshape(space.shape)
        down, across = (np.array_split(np.arange(n), min(SIDE, n)) for n in space.shape[1:])
        cells = [((i, j), place[:, r][..., c].ravel()) for i, r in enumerate(down) for j, c in enumerate(across)]
        return [Hidden(f"{before}patch {i + 1}, {j + 1}", key, index, (i, j)) for (i, j), index in cells]
    owner = space
    while env is not None and not hasattr(owner, "shape_of_cells"):
        owner, env = env, env.env if isinstance(env, gym.Wrapper) else None
    if hasattr(owner, "shape_of_cells"):
        across = owner.shape_of_cells[1]
        rows = enumerate(everything[owner.parts["cells"]].reshape(owner.shape_of_cells[0] * across, -1))
        found = [Hidden(f"cell {i // across + 1}, {i % across + 1}", key, x, divmod(i, across)) for i, x in rows]
        found += [Hidden(name, key, everything[at]) for name, at in owner.parts.items() if name != "cells"]
        found.append(Hidden("the rest", key, np.setdiff1d(everything, np.concatenate([part.places for part in found]))))
        return [part for part in found if len(part.places)]
    if len(everything) > MANY:
        blocks = np.array_split(everything, MANY // 2)
        return [Hidden(f"{before}entries {block[0]} to {block[-1]}", key, block) for block in blocks]
    labels = names if len(names) == len(everything) else [f"{before}entry {i}" for i in everything]
    return [Hidden(label, key, np.array([i])) for i, label in enumerate(labels)]


def saliency(view: PolicyView, obs: Obs, memory: Any, parts: list[Hidden], seed: int = 0) -> np.ndarray:
    """How much the policy changes, in [0, 1], while each part is hidden: mean over the states, (G,)."""
    rng, found = np.random.default_rng(seed), np.zeros(len(parts))
    for _ in range(REPEATS):
        for number, part in enumerate(parts):
            array = np.asarray(obs[part.key] if isinstance(obs, dict) else obs)
            changed = array.reshape(len(array), -1).copy()
            changed[:, part.places] = changed[rng.permutation(len(array))][:, part.places]
            shaped = changed.reshape(array.shape)
            given = {**obs, part.key: shaped} if isinstance(obs, dict) else shaped
            found[number] += view.moved(obs, given, memory).mean() / REPEATS
    return found


def splits(model: Any, names: list[str]) -> dict[str, Any]:
    """What the questions of a policy of boosted trees are about; nothing of another policy.

    Returns their `count`, `of` what they are (the policy, the value of each stream), and `parts`: each entry of the
    observation with its shares of the gain of all questions, one for each of these, what the policy asks about first.
    """
    trees = getattr(model.policy, "trunk", None)
    if not isinstance(trees, Trees):
        return {}
    gain, outputs = trees.importance.cpu().double().numpy(), model.policy.actions.outputs
    gain = np.c_[gain[:, :outputs].sum(1), gain[:, outputs:]]
    shares = gain / np.maximum(gain.sum(0), 1e-12)
    order = [i for i in np.argsort(-shares[:, 0], kind="stable") if shares[i].any()]
    parts = [{"part": names[i], "shares": shares[i].tolist()} for i in order]
    return {"count": len(trees.leaf), "of": ["policy", *(f"value of {name}" for name in model.streams)], "parts": parts}


def imitate(
    read: np.ndarray, names: list[str], actions: np.ndarray, episode: np.ndarray, discrete: bool, meanings: list[str]
) -> dict[str, Any]:
    """A tree from what is read (M, F) to actions (M, n), and how faithful it is in the last third of the episodes.

    Returns `fidelity`, the share of held-out states with the policy's action (of numbers: the share of the variance,
    R^2), `constant`, the same of always giving the `answer` that is the most common (mean) one, because a policy that
    rarely does anything else is easy to imitate; `rows` held out, and the `rules`. `meanings` are names of actions.
    """
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, export_text

    held, shape = episode >= max(2 * (episode[-1] + 1) // 3, 1), {"max_depth": DEPTH, "max_leaf_nodes": LEAVES}
    if discrete:
        found, target = np.unique(actions, axis=0, return_inverse=True)
        words = [", ".join(map(str, row)) if len(row) > 1 or not meanings else meanings[int(row[0])] for row in found]
        tree = DecisionTreeClassifier(**shape, random_state=0).fit(read[~held], target[~held])
        most = np.bincount(target[~held]).argmax()
        fidelity, constant = (float(np.mean(x == target[held])) for x in (tree.predict(read[held]), most))
        answer, options = words[most], {"class_names": [words[i] for i in tree.classes_]}
    else:
        tree = DecisionTreeRegressor(**shape, random_state=0).fit(read[~held], actions[~held])
        mean, options = actions[~held].mean(0), {}
        spread = max(float(np.square(actions[held] - actions[held].mean(0)).sum()), 1e-12)
        guesses = tree.predict(read[held]).reshape(-1, len(mean)), mean
        fidelity, constant = (1 - float(np.square(guess - actions[held]).sum()) / spread for guess in guesses)
        answer = ", ".join(f"{value:.3g}" for value in mean)
    alone = tree.get_n_leaves() == 1  # a single class would be called 0
    rules = [f"always {answer}"] if alone else export_text(tree, feature_names=names, **options).splitlines()
    numbers: dict[str, Any] = {"fidelity": fidelity, "constant": constant, "answer": answer, "discrete": discrete}
    return numbers | {"rows": int(held.sum()), "rules": rules}
