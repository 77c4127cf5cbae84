"""Model-based transfer learning: train where the policy will be worth most to tasks that no policy serves yet.

A family of tasks has a context x. The return at x' of a policy trained at x is modelled as its return at home less a
loss that grows with the distance, V(x, x') = J(x) - theta |x - x'|. J is a Gaussian process over what was trained,
theta comes from the losses so far, and the next source is

    argmax_x mean_x' max(0, mu(x) + beta_k sigma(x) - theta |x - x'| - max over sources y of V(y, x'))

Source: Cho, Jayawardana, Li & Wu 2024, "Model-Based Transfer Learning for Contextual Reinforcement Learning", arXiv
2408.04498: the acquisition as its abstract and the authors' released code have it, and from that code the first source
(the middle) and beta_k = sqrt(log(k + 1)).

Differences from the source:
  - theta is fitted through the origin to all losses V(x, x) - V(x, x') so far, one for each parameter of the context,
    and is at least 0; the authors fix one number, or fit a line for each source to absolute differences;
  - contexts are scaled to [0, 1], and returns by the spread of all so far, so that no constant depends on the
    task;
  - the process is fitted to the returns of sources at home, V(x, x), and its kernel is tuned from the third source on.

Fails when: tasks differ more in the return that is possible than policies differ in how well they transfer, as the
model takes a poor task next door for a loss of transfer. Where all lose alike with distance, equidistant sources do as
well, and can be trained all at once; but their number must be known beforehand.
"""

import warnings

import numpy as np

# Deviation of a source's return at home from the process, in units of the spread of returns.
HOME_NOISE = 0.1
# Of the kernel, before there is enough to tune it, in units of the context's range.
KERNEL_LENGTH = 0.3


def central_source(contexts: np.ndarray) -> int:
    """The source to begin with; contexts are (N, D) in [0, 1]."""
    return int(np.abs(contexts - 0.5).sum(axis=1).argmin())


def choose(contexts: np.ndarray, seen: dict[int, np.ndarray]) -> int:
    """The next source, not in `seen`: source -> its policy's returns on all tasks, (N,); contexts (N, D) in [0, 1]."""
    if len(seen) >= len(contexts):
        raise ValueError(f"all {len(contexts)} tasks have been trained on; give a smaller budget or more tasks")
    if not seen:
        return central_source(contexts)
    sources = list(seen)
    returns = np.array(list(seen.values()), np.float64)
    spread = np.ptp(returns) or 1.0
    returns = (returns - returns.min()) / spread
    home = returns[range(len(sources)), sources]
    mean, deviation = predict(contexts, sources, home)
    # The upper confidence bound mu + beta_k sigma of a source's return at home.
    beta = np.sqrt(np.log(len(sources) + 1))
    theta = slope(contexts, sources, returns)
    gain = acquisition(mean + beta * deviation, theta, contexts, returns.max(axis=0))
    gain[sources] = -np.inf
    return int(gain.argmax())


def predict(contexts: np.ndarray, sources: list[int], home: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation (N,) of a source's return at home, from those of K sources, (K,), in [0, 1]."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(0.25, (0.01, 4.0)) * RBF(KERNEL_LENGTH, (0.05, 2.0))
    optimizer = "fmin_l_bfgs_b" if len(sources) > 2 else None
    process = GaussianProcessRegressor(kernel, alpha=HOME_NOISE**2, optimizer=optimizer)
    centre = home.mean()
    with warnings.catch_warnings():
        # A kernel at the end of its range is expected with three points.
        warnings.simplefilter("ignore")
        process.fit(contexts[sources], home - centre)
    mean, deviation = process.predict(contexts, return_std=True)
    return mean + centre, deviation


def slope(contexts: np.ndarray, sources: list[int], values: np.ndarray) -> np.ndarray:
    """Loss of return for each unit of distance in each parameter, theta (D,), at least 0; values are (K, N)."""
    from scipy.optimize import nnls

    # Axes: source, task, parameter.
    distance = np.abs(contexts[None] - contexts[sources][:, None])
    home = values[range(len(sources)), sources]
    loss = home[:, None] - values
    theta, _ = nnls(distance.reshape(-1, contexts.shape[1]), loss.ravel())
    return theta


def acquisition(home: np.ndarray, theta: np.ndarray, contexts: np.ndarray, best: np.ndarray) -> np.ndarray:
    """What each source would add to all tasks, mean over them, (N,).

    From its optimistic return at home (N,), the loss for each unit of distance (D,), each task's best so far (N,).
    """
    loss = np.abs(contexts[:, None] - contexts[None]) @ theta
    gain = home[:, None] - loss - best[None]
    return np.maximum(gain, 0).mean(axis=1)


def equidistant(contexts: np.ndarray, k: int) -> list[int]:
    """Control: k sources in the middle of k equal parts; with two parameters, far from each other."""
    if contexts.shape[1] == 1:
        places = (np.arange(k) + 0.5) / k
        distance = np.abs(contexts - places)
        # Two places may have the same task next to them.
        return list(dict.fromkeys(distance.argmin(axis=0).tolist()))
    sources = [central_source(contexts)]
    while len(sources) < k:
        distance = np.abs(contexts[:, None] - contexts[sources][None]).sum(axis=2)
        sources.append(int(distance.min(axis=1).argmax()))
    return sources


def mean_of_best(values: np.ndarray) -> np.ndarray:
    """Sources in order (K, N) -> (K,): mean over tasks of the best policy's return, after each source."""
    return np.maximum.accumulate(values, axis=0).mean(axis=1)
