# mypy: allow-untyped-defs
"""All epochs of PPO's update in one compiled call: gather, forward, loss, backward, clip of the gradient, Adam.

The arithmetic is that of `agents.ppo.numpy_update`, whose docstring has the formulas; here a minibatch costs no
calls. Its pieces, and how numbers lie in memory, are those of `lodestar.numerics.kernel`. One signature serves all
networks and spaces: it is compiled once.

Repeated on one processor it gives the same bits; NumPy's step rounds the last digit otherwise.
"""

import math

import numpy as np

from lodestar.numerics.kernel import HALF, ONE, ZERO, F, adam, compiled, padded, product, transpose


@compiled
def activate(z, bias, width, bend):
    """z (n, B) += bias, then tanh if `bend`: a quotient of polynomials exact to 3 units in the last place (Eigen's)."""
    for i in range(len(z)):
        for j in range(width):
            z[i, j] += bias[i]
        for j in range(width if bend else 0):
            x = F(7.905311) if z[i, j] > F(7.905311) else z[i, j]  # two choices: three at once do not vectorise
            x = F(-7.905311) if x < F(-7.905311) else x
            s = x * x
            p = ((F(-2.76076847742355e-16) * s + F(2.00018790482477e-13)) * s + F(-8.60467152213735e-11)) * s
            p = (((p + F(5.12229709037114e-08)) * s + F(1.48572235717979e-05)) * s + F(6.37261928875436e-04)) * s
            q = (F(1.19825839466702e-06) * s + F(1.18534705686654e-04)) * s + F(2.26843463243900e-03)
            z[i, j] = x * (p + F(4.89352455891786e-03)) / (q * s + F(4.89352518554385e-03))


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
    top, total = np.empty(count, F), np.empty(count, F)
    for j in range(count):
        log_prob[j] = ZERO
    for i in range(len(log_std)):
        scale, constant = F(math.exp(-log_std[i])), log_std[i] + HALF * F(math.log(2 * math.pi))
        for j in range(count):
            p[i, j] = (action[i, j] - out[i, j]) * scale
            log_prob[j] -= HALF * p[i, j] * p[i, j] + constant
    for choice in range(len(columns) - 1):
        begin, end = columns[choice], columns[choice + 1]
        for j in range(count):
            top[j], total[j] = out[begin, j], ZERO
        for i in range(begin + 1, end):
            for j in range(count):
                top[j] = out[i, j] if out[i, j] > top[j] else top[j]
        for i in range(begin, end):
            for j in range(count):
                out[i, j] -= top[j]
                p[i, j] = F(math.exp(out[i, j]))
                total[j] += p[i, j]
        for j in range(count):
            top[j], total[j] = F(math.log(total[j])), ONE / total[j]
        for i in range(begin, end):
            for j in range(count):
                out[i, j] -= top[j]
                p[i, j] *= total[j]
        for j in range(count):
            log_prob[j] += out[begin + int(action[choice, j]), j]


@compiled
def slopes(out, p, action, log_std, d_log_std, columns, count, slope, weight):
    """p becomes the gradient with respect to the outputs; slope (B,) is that with respect to log-probabilities."""
    for i in range(len(log_std)):
        scale, total = F(math.exp(-log_std[i])), ZERO
        for j in range(count):
            total += (p[i, j] * p[i, j] - ONE) * slope[j]
            p[i, j] *= scale * slope[j]
        d_log_std[i] = total - weight
    mean, share = np.empty(count, F), weight / F(count)
    for choice in range(len(columns) - 1):
        begin, end = columns[choice], columns[choice + 1]
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
def epochs(
    value, grad, mean, square, steps, log_std, d_log_std, layout, vector, action, numbers, mask, order, size,
    columns, settings, every,
):  # fmt: skip
    """Learn from a rollout.

    Args:
        value, grad, mean, square, steps: (P,) float32, parameters, gradient, Adam's moments; its steps so far.
        log_std, d_log_std: views of a Gaussian's parameters; empty for categoricals.
        layout: (4, 2, layers): outputs and inputs of policy and values, where weights and biases lie among parameters.
        vector, action, numbers, mask: a `Batch`; actions as float32, no rows of mask for none.
        order: (epochs, rows), the rows as each epoch learns from them; size: of a minibatch.
        columns: where each categorical begins, and their end; empty for a Gaussian.
        settings: learning rate, clip range, weights of entropy and value, longest gradient.
        every: how many minibatches of the last epoch apart the losses are measured.

    Returns:
        (measured, 5): losses of policy and value, entropy, approximate KL divergence, share of clipped ratios.
    """
    sizes, belows, places, biases = layout[0], layout[1], layout[2], layout[3]
    inputs, streams, layers, outputs = vector.shape[1], numbers.shape[1] - 2, sizes.shape[1], sizes[0, -1]
    rate, clip, weight, worth, longest = settings[0], F(settings[1]), F(settings[2]), F(settings[3]), settings[4]
    zero, one = np.int64(0), np.int64(1)  # no literals, for each of which numba would compile again what they go to
    most = one
    for layer in range(layers):
        most = max(most, sizes[0, layer], sizes[1, layer])
    wide, lines, across = padded(size), padded(most), padded(inputs)
    block = lines * wide
    x, below_x = np.zeros((wide, across), F), np.zeros(across * wide, F)
    rows_x, flipped = x.reshape(-1), np.zeros(wide * lines, F)
    grid, d_grid = np.zeros((2 * layers * lines, wide), F), np.zeros((3 * lines, wide), F)
    hidden, back = grid.reshape(-1), d_grid.reshape(-1)
    out, values = grid[(layers - 1) * lines :][:outputs], grid[(2 * layers - 1) * lines :][:streams]
    p, errors = d_grid[:outputs], d_grid[lines:][:streams]
    chosen, known = np.zeros((action.shape[1], wide), F), np.zeros((2 + streams, wide), F)
    scalars = np.zeros((4, wide), F)
    log_ratio, ratio, slope, advantage = scalars[0], scalars[1], scalars[2], scalars[3]
    measured, found = np.zeros((order.shape[1] // size // every + 2, 5)), 0

    for epoch in range(order.shape[0]):
        for begin in range(0, order.shape[1], size):
            count = min(size, order.shape[1] - begin)
            width = padded(count)
            average, spread = ZERO, ZERO
            for j in range(count):
                row = order[epoch, begin + j]
                for i in range(inputs):
                    x[j, i] = vector[row, i]
                for i in range(action.shape[1]):
                    chosen[i, j] = action[row, i]
                for i in range(2 + streams):
                    known[i, j] = numbers[row, i]
                average += numbers[row, 1] / F(count)
            transpose(rows_x, zero, across, below_x, zero, wide, width, across)
            for net in range(2):
                for layer in range(layers):
                    n, below, w, bias = sizes[net, layer], belows[net, layer], places[net, layer], biases[net, layer]
                    at = (net * layers + layer) * block
                    source, begins = (hidden, at - block) if layer else (below_x, zero)
                    product(value, w, below, one, source, begins, wide, hidden, at, wide, n, width, below)
                    z = grid[(net * layers + layer) * lines :][:n]
                    activate(z, value[bias:], width, layer < layers - 1)
            if len(mask):
                for j in range(count):
                    for i in range(outputs):
                        out[i, j] = out[i, j] if mask[order[epoch, begin + j], i] else F(-1e8)

            log_probabilities(out, p, chosen, log_std, columns, count, log_ratio)
            for j in range(count):
                advantage[j] = known[1, j] - average
                spread += advantage[j] * advantage[j]
            scale = ONE / (F(math.sqrt(spread / F(max(count - 1, 1)))) + F(1e-8))
            for j in range(count):
                advantage[j] *= scale
                log_ratio[j] -= known[0, j]
                ratio[j] = F(math.exp(log_ratio[j]))
                step = advantage[j] * ratio[j]
                free = ONE if step - advantage[j] <= clip * abs(advantage[j]) else ZERO
                slope[j] = step * free / F(-count)
            for k in range(streams):
                for j in range(count):
                    errors[k, j] = (values[k, j] - known[2 + k, j]) * (F(2) * worth / F(count))
            if epoch == order.shape[0] - 1 and begin // size % every == 0:
                for j in range(count):
                    limited = min(max(ratio[j], ONE - clip), ONE + clip)
                    measured[found, 0] -= min(advantage[j] * ratio[j], advantage[j] * limited) / count
                    for k in range(streams):
                        measured[found, 1] += (values[k, j] - known[2 + k, j]) ** 2 / count
                    for i in range(outputs if len(columns) else 0):
                        measured[found, 2] -= p[i, j] * out[i, j] / count
                    measured[found, 3] += (ratio[j] - ONE - log_ratio[j]) / count
                    measured[found, 4] += (abs(ratio[j] - ONE) > clip) / count
                for i in range(len(log_std)):
                    measured[found, 2] += log_std[i] + 0.5 * math.log(2 * math.pi * math.e)
                found += 1

            slopes(out, p, chosen, log_std, d_log_std, columns, count, slope, weight)
            for net in range(2):
                d, spare = net * block, 2 * block
                for layer in range(layers - 1, -1, -1):
                    n, below, w, bias = sizes[net, layer], belows[net, layer], places[net, layer], biases[net, layer]
                    at = (net * layers + layer) * block
                    h = grid[(net * layers + layer) * lines :][:n]
                    slope_before(d_grid[d // wide :][:n], h, grad[bias:], count, layer < layers - 1)
                    if layer == 0:
                        product(back, d, wide, one, rows_x, zero, across, grad, w, below, n, below, count)
                    else:
                        transpose(hidden, at - block, wide, flipped, zero, lines, padded(below), width)
                        product(back, d, wide, one, flipped, zero, lines, grad, w, below, n, below, count)
                        product(value, w, one, below, back, d, wide, back, spare, wide, below, width, n)
                        d, spare = spare, d
            steps += 1
            adam(value, grad, mean, square, steps, rate, longest)
    return measured[:found]
