"""Which shapes of a score can be farmed? A grid small enough to know the optimal policy of each exactly.

A square of 12 x 12 cells; the episode ends in the goal's corner with a reward of 1. A score p(s) >= 0 rises towards the
goal, but higher still towards a decoy elsewhere. Each shape of `rewards.mix.shaping` makes it a reward, which is
added to the task's with a weight; value iteration gives the policy that is best for the sum, and what counts is the
share of cells from which that policy reaches the goal within 60 steps.

Sources of the shapes: see `rewards.mix.shaping`; "sigmoid, positive" and "log-sigmoid" are those of Fu et al. 2025,
arXiv 2502.18770, which were made for one reward an episode. Exact: no learning, no seed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from rewards.mix.shaping import clip, delta, par, potential, sigmoid

SIZE, GAMMA, WITHIN = 12, 0.97, 60
WEIGHTS = (0.05, 0.2, 1.0)
SLOPE = 10.0
GOAL, DECOY = (11, 11), (2, 8)
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])

Shape = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # p(s), p(s'), is s' terminal -> reward


def score(width: float = 6.0) -> np.ndarray:
    """p of each cell (144,), in [0, 1]: 0.6 at the goal, 1 at the decoy, falling off like Gaussians.

    `width` is the goal's; a narrow one digs a valley that `clip` makes dear to cross.
    """
    cells = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij"), axis=-1).reshape(-1, 2)
    near = [np.exp(-((cells - place) ** 2).sum(1) / (2 * width**2)) for place, width in ((GOAL, width), (DECOY, 2.5))]
    return np.maximum(0.6 * near[0], near[1])


def shapes(p: np.ndarray) -> dict[str, Shape]:
    """The reward of a step for each shape; thresholds are the median and the 85th percentile of p."""
    middle, high = np.quantile(p, (0.5, 0.85))
    references = np.quantile(p, (np.arange(10) + 0.5) / 10)
    return {
        "task alone": lambda old, new, end: np.zeros_like(new),
        "as it is": lambda old, new, end: new,
        "sigmoid, positive": lambda old, new, end: sigmoid(new, middle, SLOPE) + 0.5,
        "sigmoid": lambda old, new, end: sigmoid(new, middle, SLOPE),
        "log-sigmoid": lambda old, new, end: np.log(sigmoid(new, high, SLOPE) + 0.5),
        "clip": lambda old, new, end: clip(new, high),
        "delta": lambda old, new, end: delta(old, new),
        "potential": lambda old, new, end: potential(old, new, end, GAMMA),
        "par, each step": lambda old, new, end: par(new, references, SLOPE),
        "par": lambda old, new, end: potential(par(old, references, SLOPE), par(new, references, SLOPE), end, GAMMA),
    }


def successors() -> tuple[np.ndarray, np.ndarray]:
    """Successor of each cell and move, int (144, 4), walls stop it; and whether a cell is the goal, bool (144,)."""
    cells = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij"), axis=-1).reshape(-1, 1, 2)
    moved = np.clip(cells + MOVES, 0, SIZE - 1)
    goal = np.zeros(SIZE * SIZE, bool)
    goal[GOAL[0] * SIZE + GOAL[1]] = True
    return moved[..., 0] * SIZE + moved[..., 1], goal


def best_policy(successor: np.ndarray, reward: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Value iteration to the last bit: the best move of each cell, int (S,).

    Args:
        successor: cell after each move (S, A).
        reward: of each move (S, A).
        ends: bool (S, A), the move ends the episode.
    """
    continues = GAMMA * ~ends
    value = np.zeros(len(successor))
    while True:
        moves = reward + continues * value[successor]
        better = moves.max(axis=1)
        if np.abs(better - value).max() < 1e-12:
            return np.round(moves, 9).argmax(axis=1)  # ties go to the first move, whatever the last bit says
        value = better


def walk(successor: np.ndarray, goal: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """The cells that a policy visits from every cell: int (WITHIN + 1, S); the goal holds."""
    step = np.where(goal, np.arange(len(goal)), successor[np.arange(len(goal)), policy])
    cells = [np.arange(len(goal))]
    for _ in range(WITHIN):
        cells.append(step[cells[-1]])
    return np.stack(cells)


def walks(p: np.ndarray, shape: str, weight: float) -> np.ndarray:
    """Walks of the policy that is best for task + weight * p, shaped as named: int (WITHIN + 1, 144)."""
    successor, goal = successors()
    reward, ends = shapes(p)[shape], goal[successor]
    shaped = reward(np.broadcast_to(p[:, None], successor.shape), p[successor], ends)
    return walk(successor, goal, best_policy(successor, ends + weight * shaped, ends))


def reached(p: np.ndarray, shape: str, weight: float) -> float:
    """Share of cells from which the best policy reaches the goal in time, in [0, 1]."""
    _, goal = successors()
    return round(float(goal[walks(p, shape, weight)[-1]][~goal].mean()), 4)


def run(folder: Path) -> dict[str, float]:
    """Write CSV and figure; the share of cells that reach the goal, by shape and weight."""
    p = score()
    rows: list[dict[str, Any]] = [
        {"shape": name, "weight": w, "reached": reached(p, name, w)} for name in shapes(p) for w in WEIGHTS
    ]
    path = folder / "shaping_grid.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    draw(folder.parent / "figures" / "shaping_grid.png", rows)
    return {f"{_key(row['shape'])}_w{row['weight']:g}": row["reached"] for row in rows}


def _key(name: str) -> str:
    return "shaping_" + name.replace(", ", "_").replace(" ", "_").replace("-", "_")


def draw(picture: Path, rows: list[dict[str, Any]]) -> None:
    """The score with two walks from one corner, beside the table of shares."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.1), layout="constrained", width_ratios=(1, 1.05))
    left.imshow(score().reshape(SIZE, SIZE), cmap="Greys", vmin=0, vmax=1.6)
    start = (SIZE - 1) // 2 * SIZE
    for name, colour in (("as it is", "#b5482f"), ("potential", "#2c6e9b")):
        cells = walks(score(), name, 0.2)[:, start]
        left.plot(cells % SIZE, cells // SIZE, color=colour, linewidth=2, label=f"best for task + 0.2 x p, {name}")
    for (row, column), word in ((GOAL, "goal"), (DECOY, "decoy"), (divmod(start, SIZE), "start")):
        inside = column < SIZE / 2
        left.plot(column, row, "o", color="black", markersize=4)
        left.annotate(word, (column, row), (5 if inside else -5, 7), textcoords="offset points", fontsize=7.5,
                      ha="left" if inside else "right")  # fmt: skip
    left.legend(fontsize=6.5, loc="upper left", frameon=False, bbox_to_anchor=(0, -0.01), ncols=1)
    left.set_title("a score p with a decoy", fontsize=8.5)
    left.set_xticks([])
    left.set_yticks([])
    names = list(dict.fromkeys(row["shape"] for row in rows))
    table = np.array([row["reached"] for row in rows]).reshape(len(names), -1)
    right.imshow(table, cmap="RdYlBu", vmin=-0.15, vmax=1.15, aspect="auto")
    for (i, j), share in np.ndenumerate(table):
        right.text(
            j,
            i,
            f"{share:.2f}",
            ha="center",
            va="center",
            fontsize=7.5,
            color="black" if 0.1 < share < 0.9 else "white",
        )
    right.set_xticks(range(len(WEIGHTS)), [f"w = {weight:g}" for weight in WEIGHTS], fontsize=7.5)
    right.set_yticks(range(len(names)), names, fontsize=7.5)
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    right.set_title("share of cells whose best policy reaches the goal", fontsize=8.5)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=160)
    plt.close(figure)
