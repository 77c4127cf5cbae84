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
from runners.explain.measures import split_patches
from runners.explain.policy import PolicyView

# More entries of a vector than this are hidden in blocks, half as many.
MAX_SINGLE_ENTRIES = 64
# How often another state is drawn for a hidden part.
SALIENCY_DRAWS = 2
# Of the tree that imitates a policy.
TREE_LIMITS = {"max_depth": 4, "max_leaf_nodes": 10}


class Hidden(NamedTuple):
    """A part of the observation: `places` in its array `key`, ravelled; `cell` is (row, column) in a heat map."""

    label: str
    key: str
    places: np.ndarray
    cell: tuple[int, int] | None = None


def hidden_parts(space: Any, env: Any = None, names: tuple[str, ...] = (), key: str = "") -> list[Hidden]:
    """The parts of an observation; `names` are those of the entries of a vector."""
    parts = []
    if isinstance(space, spaces.Dict):
        for name, entry_space in space.spaces.items():
            parts += hidden_parts(entry_space, key=name)
        return parts
    places = np.arange(int(np.prod(space.shape or ())))
    prefix = f"{key}: " if key else ""
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3:
        _, height, width = space.shape
        image = places.reshape(space.shape)
        for i, rows in enumerate(split_patches(height)):
            for j, columns in enumerate(split_patches(width)):
                patch = image[:, rows][..., columns].ravel()
                parts.append(Hidden(f"{prefix}patch {i + 1}, {j + 1}", key, patch, (i, j)))
        return parts
    grid = _find_grid(space, env)
    if grid is not None:
        return _grid_parts(grid, places, key)
    if len(places) > MAX_SINGLE_ENTRIES:
        for block in np.array_split(places, MAX_SINGLE_ENTRIES // 2):
            label = f"{prefix}entries {block[0]} to {block[-1]}"
            parts.append(Hidden(label, key, block))
        return parts
    for i in range(len(places)):
        label = f"{prefix}entry {i}"
        if len(names) == len(places):
            label = names[i]
        parts.append(Hidden(label, key, np.array([i])))
    return parts


def _find_grid(space: Any, env: Any) -> Any:
    """The space or the wrapper that declares a grid of cells; None if nothing does."""
    owner = space
    while not hasattr(owner, "shape_of_cells"):
        if env is None:
            return None
        owner = env
        env = env.env if isinstance(env, gym.Wrapper) else None
    return owner


def _grid_parts(grid: Any, places: np.ndarray, key: str) -> list[Hidden]:
    """Cells of a grid, the other parts that it declares, and the rest of the observation."""
    parts = []
    rows, columns = grid.shape_of_cells[:2]
    cells = places[grid.parts["cells"]].reshape(rows * columns, -1)
    for i, cell in enumerate(cells):
        row, column = divmod(i, columns)
        parts.append(Hidden(f"cell {row + 1}, {column + 1}", key, cell, (row, column)))
    for name, index in grid.parts.items():
        if name != "cells":
            parts.append(Hidden(name, key, places[index]))
    declared = np.concatenate([part.places for part in parts])
    parts.append(Hidden("the rest", key, np.setdiff1d(places, declared)))
    return [part for part in parts if len(part.places)]


def saliency(view: PolicyView, obs: Obs, memory: Any, parts: list[Hidden], seed: int = 0) -> np.ndarray:
    """How much the policy changes, in [0, 1], while each part is hidden: mean over the states, (G,)."""
    rng = np.random.default_rng(seed)
    changes = np.zeros(len(parts))
    for _ in range(SALIENCY_DRAWS):
        for number, part in enumerate(parts):
            array = np.asarray(obs[part.key] if isinstance(obs, dict) else obs)
            hidden = array.reshape(len(array), -1).copy()
            # Each state gets the part of another one.
            hidden[:, part.places] = hidden[rng.permutation(len(array))][:, part.places]
            changed: Any = hidden.reshape(array.shape)
            if isinstance(obs, dict):
                changed = {**obs, part.key: changed}
            changes[number] += view.movement(obs, changed, memory).mean() / SALIENCY_DRAWS
    return changes


def splits(model: Any, names: list[str]) -> dict[str, Any]:
    """What the questions of a policy of boosted trees are about; nothing of another policy.

    Returns their `count`, `of` what they are (the policy, the value of each stream), and `parts`: each entry of the
    observation with its shares of the gain of all questions, one for each of these, what the policy asks about first.
    """
    trees = getattr(model.policy, "trunk", None)
    if not isinstance(trees, Trees):
        return {}
    # Entries by outputs: first those of the policy, which count together, then a value each.
    gain = trees.importance.cpu().double().numpy()
    policy_outputs = model.policy.actions.outputs
    gain = np.c_[gain[:, :policy_outputs].sum(1), gain[:, policy_outputs:]]
    shares = gain / np.maximum(gain.sum(0), 1e-12)
    parts = []
    for i in np.argsort(-shares[:, 0], kind="stable"):
        if shares[i].any():
            part = {"part": names[i], "shares": shares[i].tolist()}
            parts.append(part)
    outputs = ["policy", *map("value of {}".format, model.streams)]
    return {"count": len(trees.leaf), "of": outputs, "parts": parts}


def imitate(
    read: np.ndarray, names: list[str], actions: np.ndarray, episode: np.ndarray, discrete: bool, meanings: list[str]
) -> dict[str, Any]:
    """A tree from what is read (M, F) to actions (M, n), and how faithful it is in the last third of the episodes.

    Returns `fidelity`, the share of held-out states with the policy's action (of numbers: the share of the variance,
    R^2), `constant`, the same of always giving the `answer` that is the most common (mean) one, because a policy that
    rarely does anything else is easy to imitate; `rows` held out, and the `rules`. `meanings` are names of actions.
    """
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, export_text

    held_out = last_third(episode)
    inputs = read[~held_out]
    options = {}
    if discrete:
        # Each action that occurs is a class.
        classes, labels = np.unique(actions, axis=0, return_inverse=True)
        words = [_action_words(action, meanings) for action in classes]
        tree = DecisionTreeClassifier(**TREE_LIMITS, random_state=0).fit(inputs, labels[~held_out])
        most_common = np.bincount(labels[~held_out]).argmax()
        goal = labels[held_out]
        fidelity = tree.score(read[held_out], goal)
        constant = float(np.mean(most_common == goal))
        answer = words[most_common]
        options["class_names"] = np.array(words)[tree.classes_].tolist()
    else:
        tree = DecisionTreeRegressor(**TREE_LIMITS, random_state=0).fit(inputs, actions[~held_out])
        mean = actions[~held_out].mean(0)
        goal = actions[held_out]
        predicted = tree.predict(read[held_out]).reshape(goal.shape)
        fidelity = r_squared(predicted, goal)
        constant = r_squared(mean, goal)
        answer = ", ".join(f"{value:.3g}" for value in mean)
    if tree.get_n_leaves() == 1:
        # export_text would call a single class 0.
        rules = [f"always {answer}"]
    else:
        rules = export_text(tree, feature_names=names, **options).splitlines()
    return {
        "fidelity": fidelity,
        "constant": constant,
        "answer": answer,
        "discrete": discrete,
        "rows": int(held_out.sum()),
        "rules": rules,
    }


def last_third(episode: np.ndarray) -> np.ndarray:
    """Which states (M,) are of the last third of the episodes, at least one, to judge imitations by."""
    return episode >= max(2 * (episode[-1] + 1) // 3, 1)


def _action_words(action: np.ndarray, meanings: list[str]) -> str:
    if len(action) == 1 and meanings:
        return meanings[int(action[0])]
    return ", ".join(map(str, action))


def r_squared(predicted: np.ndarray, goal: np.ndarray) -> float:
    """The share of the variance of goals (M, n) that predictions explain."""
    error = float(np.square(predicted - goal).sum())
    variation = float(np.square(goal - goal.mean(0)).sum())
    return 1 - error / max(variation, 1e-12)
