# mypy: allow-untyped-defs
"""All epochs of PPO's update in one compiled call: gather, forward, loss, backward, clip of the gradient, Adam.

The arithmetic is that of `agents.ppo.numpy_update`, whose docstring has the formulas; here a minibatch
costs no calls. Its pieces, and how numbers lie in memory, are those of `lodestar.numerics.kernel`. One
signature serves all networks and spaces: it is compiled once.

Repeated on one processor it gives the same bits; NumPy's step rounds the last digit otherwise.

The loops stay dense: LLVM vectorises each as it stands, and 100 rows of a minibatch are a few
microseconds, which a call to Python or an array of its own would double.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from lodestar.numerics.kernel import HALF, ONE, ZERO, F, adam, compiled, padded_columns, product, transpose

# The columns of a `Targets`: log-probability when acting, advantage, and from the third on returns.
TARGET_LOG_PROB = 0
TARGET_ADVANTAGE = 1
TARGET_RETURNS = 2
# The columns of what is measured: losses of policy and values, entropy, KL divergence, clipped share.
POLICY_LOSS_COLUMN = 0
VALUE_LOSS_COLUMN = 1
ENTROPY_COLUMN = 2
APPROX_KL_COLUMN = 3
CLIP_FRACTION_COLUMN = 4
MEASURED_COLUMNS = 5
# Of tanh, as a quotient of polynomials in x^2 that is exact to 3 units in the last place (Eigen's).
TANH_LIMIT = F(7.905311)
# Logit of an action that is not allowed.
NOT_ALLOWED = F(-1e8)


class EpochSettings(NamedTuple):
    """What an update follows: the rate and the longest gradient are float64, the others float32."""

    learning_rate: Any
    clip_range: Any
    entropy_weight: Any
    value_weight: Any
    max_grad_norm: Any
    # Whether the activation is ReLU, and not tanh.
    relu: Any


class ParameterLayout(NamedTuple):
    """Int64 (2, layers), of policy and values: a layer's outputs and inputs, where its weights and biases begin."""

    outputs: Any
    inputs: Any
    weights: Any
    biases: Any


@compiled
def activate(z, bias, width, bend):
    """z (n, B) += bias, then tanh if `bend`."""
    for i in range(len(z)):
        for j in range(width):
            z[i, j] += bias[i]
        for j in range(width if bend else 0):
            # Two choices, since three at once do not vectorise.
            x = TANH_LIMIT if z[i, j] > TANH_LIMIT else z[i, j]
            x = -TANH_LIMIT if x < -TANH_LIMIT else x
            s = x * x
            p = ((F(-2.76076847742355e-16) * s + F(2.00018790482477e-13)) * s + F(-8.60467152213735e-11)) * s
            p = (((p + F(5.12229709037114e-08)) * s + F(1.48572235717979e-05)) * s + F(6.37261928875436e-04)) * s
            q = (F(1.19825839466702e-06) * s + F(1.18534705686654e-04)) * s + F(2.26843463243900e-03)
            z[i, j] = x * (p + F(4.89352455891786e-03)) / (q * s + F(4.89352518554385e-03))


@compiled
def rectify(z, h, count):
    """z (n, B) becomes 0 where h (n, B) is not above 0: ReLU of h itself, and its gradient."""
    for i in range(len(z)):
        for j in range(count):
            z[i, j] = z[i, j] if h[i, j] > ZERO else ZERO


@compiled
def slope_before(d, h, d_bias, count, bent):
    """The gradient d (n, B) with respect to h becomes, if h is `bent` by tanh, that before tanh; d_bias its sums."""
    part = ONE if bent else ZERO
    for i in range(len(d)):
        total = ZERO
        for j in range(count):
            slope = d[i, j] * (ONE - part * h[i, j] * h[i, j])
            d[i, j] = slope
            total += slope
        d_bias[i] = total


@compiled
def log_probabilities(out, p, action, log_std, columns, count, log_prob):
    """Of `action` (choices, B), into log_prob (B,); p (outputs, B) becomes (a - mean) / sigma, or probabilities.

    For categoricals, which begin at `columns`, `out` becomes log p.
    """
    top = np.empty(count, F)
    total = np.empty(count, F)
    for j in range(count):
        log_prob[j] = ZERO
    for i in range(len(log_std)):
        scale = F(math.exp(-log_std[i]))
        constant = log_std[i] + HALF * F(math.log(2 * math.pi))
        for j in range(count):
            p[i, j] = (action[i, j] - out[i, j]) * scale
            log_prob[j] -= HALF * p[i, j] * p[i, j] + constant
    for choice in range(len(columns) - 1):
        begin = columns[choice]
        end = columns[choice + 1]
        # The largest logit is taken off first, so that no exponential overflows.
        for j in range(count):
            top[j] = out[begin, j]
            total[j] = ZERO
        for i in range(begin + 1, end):
            for j in range(count):
                top[j] = out[i, j] if out[i, j] > top[j] else top[j]
        for i in range(begin, end):
            for j in range(count):
                out[i, j] -= top[j]
                p[i, j] = F(math.exp(out[i, j]))
                total[j] += p[i, j]
        log_total = top
        for j in range(count):
            log_total[j] = F(math.log(total[j]))
            total[j] = ONE / total[j]
        for i in range(begin, end):
            for j in range(count):
                out[i, j] -= log_total[j]
                p[i, j] *= total[j]
        for j in range(count):
            log_prob[j] += out[begin + int(action[choice, j]), j]


@compiled
def slopes(out, p, action, log_std, d_log_std, columns, count, slope, entropy_weight):
    """p becomes the gradient with respect to the outputs; slope (B,) is that with respect to log-probabilities."""
    for i in range(len(log_std)):
        scale = F(math.exp(-log_std[i]))
        total = ZERO
        for j in range(count):
            total += (p[i, j] * p[i, j] - ONE) * slope[j]
            p[i, j] *= scale * slope[j]
        d_log_std[i] = total - entropy_weight
    mean = np.empty(count, F)
    share = entropy_weight / F(count)
    for choice in range(len(columns) - 1):
        begin = columns[choice]
        end = columns[choice + 1]
        # The mean of log p, which is minus the entropy.
        for j in range(count):
            mean[j] = ZERO
        for i in range(begin, end):
            for j in range(count):
                mean[j] += p[i, j] * out[i, j]
        for i in range(begin, end):
            for j in range(count):
                p[i, j] *= share * (out[i, j] - mean[j]) - slope[j]
        for j in range(count):
            p[begin + int(action[choice, j]), j] += slope[j]


@compiled
def measure(losses, advantage, ratio, log_ratio, values, returns, out, p, log_std, columns, count, clip):
    """Add what a minibatch looks like before its step to `losses` (5,)."""
    for j in range(count):
        limited = min(max(ratio[j], ONE - clip), ONE + clip)
        losses[POLICY_LOSS_COLUMN] -= min(advantage[j] * ratio[j], advantage[j] * limited) / count
        for k in range(len(values)):
            losses[VALUE_LOSS_COLUMN] += (values[k, j] - returns[k, j]) ** 2 / count
        for i in range(len(out) if len(columns) else 0):
            losses[ENTROPY_COLUMN] -= p[i, j] * out[i, j] / count
        losses[APPROX_KL_COLUMN] += (ratio[j] - ONE - log_ratio[j]) / count
        losses[CLIP_FRACTION_COLUMN] += (abs(ratio[j] - ONE) > clip) / count
    for i in range(len(log_std)):
        losses[ENTROPY_COLUMN] += log_std[i] + 0.5 * math.log(2 * math.pi * math.e)


@compiled
def epochs(
    value, grad, mean, square, steps, log_std, d_log_std, layout, vector, action, targets, mask, order, size,
    columns, settings, every,
):  # fmt: skip
    """Learn from a rollout.

    Args:
        value, grad, mean, square, steps: (P,) float32, parameters, gradient, Adam's moments; its steps so far.
        log_std, d_log_std: views of a Gaussian's parameters; empty for categoricals.
        layout: a `ParameterLayout`.
        vector, action, targets, mask: a `Batch`; actions as float32, no rows of mask for none.
        order: (epochs, rows), the rows as each epoch learns from them; size: of a minibatch.
        columns: where each categorical begins, and their end; empty for a Gaussian.
        settings: an `EpochSettings`.
        every: how many minibatches of the last epoch apart the losses are measured.

    Returns:
        (measured, 5): losses of policy and value, entropy, approximate KL divergence, share of clipped ratios.
    """
    clip = settings.clip_range
    inputs = vector.shape[1]
    streams = targets.shape[1] - TARGET_RETURNS
    layers = layout.outputs.shape[1]
    outputs = layout.outputs[0, -1]
    # No literals, for each of which numba would compile again what they go to.
    zero = np.int64(0)
    one = np.int64(1)
    most_units = one
    for layer in range(layers):
        most_units = max(most_units, layout.outputs[0, layer], layout.inputs[0, layer])

    # The widths of memory, in whole tiles: rows of a minibatch, units of a layer, inputs. A block is
    # what a layer's units take; those of the policy's layers come first, then those of the values'.
    wide = padded_columns(size)
    lines = padded_columns(most_units)
    across = padded_columns(inputs)
    block = lines * wide

    # Observations as rows and as columns; h of one layer as rows.
    x = np.zeros((wide, across), F)
    rows_x = x.reshape(-1)
    below_x = np.zeros(across * wide, F)
    flipped = np.zeros(wide * lines, F)
    # All layers' units, (units, rows), and three blocks of gradients: of the policy's layer, of the
    # values' layer, and of the layer below the one in turn.
    grid = np.zeros((2 * layers * lines, wide), F)
    hidden = grid.reshape(-1)
    d_grid = np.zeros((3 * lines, wide), F)
    back = d_grid.reshape(-1)
    out = grid[(layers - 1) * lines :][:outputs]
    values = grid[(2 * layers - 1) * lines :][:streams]
    p = d_grid[:outputs]
    errors = d_grid[lines:][:streams]
    # A minibatch's actions and targets, and four numbers a row.
    chosen = np.zeros((action.shape[1], wide), F)
    minibatch_targets = np.zeros((TARGET_RETURNS + streams, wide), F)
    returns = minibatch_targets[TARGET_RETURNS:]
    scalars = np.zeros((4, wide), F)
    log_ratio = scalars[0]
    ratio = scalars[1]
    slope = scalars[2]
    advantage = scalars[3]
    measured = np.zeros((order.shape[1] // size // every + 2, MEASURED_COLUMNS))
    measurements = 0

    for epoch in range(order.shape[0]):
        for begin in range(0, order.shape[1], size):
            count = min(size, order.shape[1] - begin)
            width = padded_columns(count)

            # Gather the minibatch.
            average = ZERO
            for j in range(count):
                row = order[epoch, begin + j]
                for i in range(inputs):
                    x[j, i] = vector[row, i]
                for i in range(action.shape[1]):
                    chosen[i, j] = action[row, i]
                for i in range(TARGET_RETURNS + streams):
                    minibatch_targets[i, j] = targets[row, i]
                average += targets[row, TARGET_ADVANTAGE] / F(count)

            # Forward, layer by layer of both networks; the heads have no activation.
            transpose(rows_x, zero, across, below_x, zero, wide, width, across)
            for network in range(2):
                for layer in range(layers):
                    n = layout.outputs[network, layer]
                    below = layout.inputs[network, layer]
                    weights = layout.weights[network, layer]
                    bias = layout.biases[network, layer]
                    at = (network * layers + layer) * block
                    source, begins = (hidden, at - block) if layer else (below_x, zero)
                    product(value, weights, below, one, source, begins, wide, hidden, at, wide, n, width, below)
                    z = grid[(network * layers + layer) * lines :][:n]
                    is_hidden = layer < layers - 1
                    activate(z, value[bias:], width, is_hidden and not settings.relu)
                    if is_hidden and settings.relu:
                        rectify(z, z, width)
            if len(mask):
                for j in range(count):
                    for i in range(outputs):
                        out[i, j] = out[i, j] if mask[order[epoch, begin + j], i] else NOT_ALLOWED

            # The gradients of the loss with respect to log-probabilities and values.
            log_probabilities(out, p, chosen, log_std, columns, count, log_ratio)
            spread = ZERO
            for j in range(count):
                advantage[j] = minibatch_targets[TARGET_ADVANTAGE, j] - average
                spread += advantage[j] * advantage[j]
            scale = ONE / (F(math.sqrt(spread / F(max(count - 1, 1)))) + F(1e-8))
            for j in range(count):
                advantage[j] *= scale
                log_ratio[j] -= minibatch_targets[TARGET_LOG_PROB, j]
                ratio[j] = F(math.exp(log_ratio[j]))
                step = advantage[j] * ratio[j]
                free = ONE if step - advantage[j] <= clip * abs(advantage[j]) else ZERO
                slope[j] = step * free / F(-count)
            for k in range(streams):
                for j in range(count):
                    errors[k, j] = (values[k, j] - returns[k, j]) * (F(2) * settings.value_weight / F(count))
            if epoch == order.shape[0] - 1 and begin // size % every == 0:
                losses = measured[measurements]
                measure(losses, advantage, ratio, log_ratio, values, returns, out, p, log_std, columns, count, clip)
                measurements += 1

            # Backward, from the heads to the first layer; two blocks of gradients take turns.
            slopes(out, p, chosen, log_std, d_log_std, columns, count, slope, settings.entropy_weight)
            for network in range(2):
                d = network * block
                spare = 2 * block
                for layer in range(layers - 1, -1, -1):
                    n = layout.outputs[network, layer]
                    below = layout.inputs[network, layer]
                    weights = layout.weights[network, layer]
                    bias = layout.biases[network, layer]
                    at = (network * layers + layer) * block
                    h = grid[(network * layers + layer) * lines :][:n]
                    d_layer = d_grid[d // wide :][:n]
                    is_hidden = layer < layers - 1
                    if is_hidden and settings.relu:
                        rectify(d_layer, h, count)
                    slope_before(d_layer, h, grad[bias:], count, is_hidden and not settings.relu)
                    if layer == 0:
                        product(back, d, wide, one, rows_x, zero, across, grad, weights, below, n, below, count)
                    else:
                        transpose(hidden, at - block, wide, flipped, zero, lines, padded_columns(below), width)
                        product(back, d, wide, one, flipped, zero, lines, grad, weights, below, n, below, count)
                        product(value, weights, one, below, back, d, wide, back, spare, wide, below, width, n)
                        d, spare = spare, d
            steps += 1
            adam(value, grad, mean, square, steps, settings.learning_rate, settings.max_grad_norm)
    return measured[:measurements]
