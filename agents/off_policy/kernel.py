# mypy: allow-untyped-defs
"""Many updates of SAC, or of DQN, in one compiled call: gather, forward, targets, backward, clip of the gradient, Adam.

The arithmetic is that of `agents.off_policy.closed_form` and of `agents.off_policy.dqn`; the pieces, and how
numbers lie in memory, are those of `lodestar.numerics.kernel`. Networks are `Stacked` ones: K members side by side,
whose weights (K, I, O) and biases (K, 1, O) follow each other, layer by layer, in one vector; between them are ReLUs.

Rounding differs from torch's; repeated on one processor, and in blocks of any length, it gives the same bits.
"""

import math

import numpy as np

from lodestar.numerics.kernel import HALF, ONE, ZERO, F, adam, compiled, padded, product, transpose

TWO, LOG2, HALF_LOG_2PI = F(2), F(math.log(2)), F(0.5 * math.log(2 * math.pi))
CLIP = F(10)  # of whitened observations


@compiled
def forward(value, member, members, sizes, x, wide, hidden, begin, block, width):
    """A member's layers for x (I, wide); those of layer l lie in `hidden` from begin + l * block on, (O, wide)."""
    place, zero, one = np.int64(0), np.int64(0), np.int64(1)
    for layer in range(len(sizes) - 1):
        below, n, at = sizes[layer], sizes[layer + 1], begin + layer * block
        bias = place + members * below * n + member * n
        source, begins = (hidden, at - block) if layer else (x, zero)
        weight = place + member * below * n
        product(value, weight, one, n, source, begins, wide, hidden, at, wide, n, width, below)
        for i in range(n):
            row, shift = hidden[at + i * wide :][:width], value[bias + i]
            for j in range(width):
                row[j] += shift
            for j in range(width if layer < len(sizes) - 2 else 0):
                row[j] = ZERO if row[j] < ZERO else row[j]  # NaN stays
        place += members * (below + 1) * n


@compiled
def backward(value, grad, member, members, sizes, x, wide, hidden, begin, block, back, flipped, lines, count, first):
    """From the slope in the outputs, the first rows of `back`, to all gradients, and to the slope in inputs.

    `grad` of no length is left alone. With `first` >= 0 the slope in the inputs from that one on is computed too; it
    lies in `back` from the returned place on.
    """
    place, zero, one = np.int64(0), np.int64(0), np.int64(1)
    for layer in range(len(sizes) - 1):
        place += members * (sizes[layer] + 1) * sizes[layer + 1]
    d, spare, width = zero, block, padded(count)
    for layer in range(len(sizes) - 2, -1, -1):
        below, n, at = sizes[layer], sizes[layer + 1], begin + layer * block
        place -= members * (below + 1) * n
        weight, bias = place + member * below * n, place + members * below * n + member * n
        for i in range(n):
            slope, h, total = back[d + i * wide :][:width], hidden[at + i * wide :][:width], ZERO
            for j in range(width if layer < len(sizes) - 2 else 0):
                slope[j] = slope[j] if h[j] > ZERO else ZERO
            if len(grad):
                for j in range(count):
                    total += slope[j]
                grad[bias + i] = total
        if len(grad):
            source, begins = (hidden, at - block) if layer else (x, zero)
            transpose(back, d, wide, flipped, zero, lines, n, width)
            product(source, begins, wide, one, flipped, zero, lines, grad, weight, n, below, n, count)
        least = zero if layer else first
        if least >= 0:
            product(value, weight + least * n, n, one, back, d, wide, back, spare, wide, below - least, width, n)
            d, spare = spare, d
    return d


@compiled
def gather(source, begin, count, mean, scale, x):
    """Rows of observations (N, D), whitened, as the columns of x."""
    for j in range(count):
        for i in range(source.shape[1]):
            z = (source[begin + j, i] - mean[i]) * scale[i]
            z = CLIP if z > CLIP else z
            x[i, j] = -CLIP if z < -CLIP else z


@compiled
def sample(out, noise, low, high, action, squeezed, moved, log_prob, count):
    """As `agents.off_policy.sac.squashed`: actions (A, B) of a Gaussian behind a tanh; `moved`: deviation by noise."""
    size, half = len(action), HALF * (high - low)
    for j in range(count):
        log_prob[j] = ZERO
    for i in range(size):
        for j in range(count):
            squeezed[i, j] = F(math.tanh(out[size + i, j]))
            log_std = low + half * (squeezed[i, j] + ONE)
            moved[i, j] = F(math.exp(log_std)) * noise[j, i]
            before = out[i, j] + moved[i, j]
            soft = max(-TWO * before, ZERO) + F(math.log1p(math.exp(-abs(TWO * before))))
            action[i, j] = F(math.tanh(before))
            log_prob[j] -= HALF * noise[j, i] * noise[j, i] + HALF_LOG_2PI + log_std + TWO * (LOG2 - before - soft)


@compiled
def space(sizes, members, rows):
    """Memory for the layers of all members, whose layers are a block apart."""
    most = np.int64(0)
    for n in sizes:
        most = max(most, n)
    return np.zeros(members * (len(sizes) - 1) * padded(most) * padded(rows), F), padded(most) * padded(rows)


@compiled
def aggregated(hidden, places, least, count, value, chosen):
    """The least of the members' values, and `chosen`, whose it is; or their mean."""
    for j in range(count):
        value[j], chosen[j] = hidden[places[0] + j], 0
    for member in range(1, len(places)):
        for j in range(count):
            other = hidden[places[member] + j]
            if not least:
                value[j] += other
            elif other < value[j] or other != other:
                value[j], chosen[j] = other, member
    for j in range(0 if least else count):
        value[j] /= F(len(places))


@compiled
def regress(
    critic, target, member_sizes, members, x, wide, q, block, back, flipped, lines, size, goal, taken, step, settings,
    found,
):  # fmt: skip
    """A step of the critics, whose outputs `taken` for x are to be `goal`, and of their targets after them."""
    whole, outputs, one = block * (len(member_sizes) - 1), member_sizes[-1] * wide, np.int64(1)
    found[0] = found[1] = 0.0
    for m in range(members):
        forward(critic[0], m, members, member_sizes, x, wide, q, m * whole, block, wide)
        back[:outputs] = ZERO
        for j in range(size):
            value = q[(m + 1) * whole - block + taken[j] * wide + j]
            back[taken[j] * wide + j] = (value - goal[j]) / F(size)
            found[0] += 0.5 * (value - goal[j]) ** 2 / size
            found[1] += value / (size * members)
        backward(
            critic[0], critic[1], m, members, member_sizes, x, wide, q, m * whole, block, back, flipped, lines, size,
            -one,
        )  # fmt: skip
    adam(critic[0], critic[1], critic[2], critic[3], step, settings[0], settings[2])
    for i in range(len(target)):
        target[i] += F(settings[1]) * (critic[0][i] - target[i])


@compiled
def soft_actor_critic(
    critic, target, steps, critic_sizes, members, whitening, obs, action, reward, next_obs, discount, size, settings,
    least, actor, alpha, actor_sizes, noise,
):  # fmt: skip
    """Learn from minibatches in a row; of the last: loss of critics, mean value, loss of actor, alpha, entropy.

    Args:
        critic, actor, alpha: values, gradients, and Adam's two moments, float32 (P,); of alpha, its logarithm (1,).
        target: of the critics, (P,); steps: of critics, actor and alpha so far.
        critic_sizes, actor_sizes: units from the inputs to the outputs; members: how many critics.
        whitening: (2, D), mean and reciprocal deviation; obs to discount: rows, float32.
        noise: (updates, 2, size, A), for the action now and the next one.
        settings: learning rate, tau, longest gradient, target entropy, whether alpha is learned, lowest and highest
            log deviation; least: whether a state is worth the least of the critics' values, else their mean.
    """
    rate, longest, wanted, learned = settings[0], settings[2], settings[3], settings[4] > 0
    low, high, infinite = F(settings[5]), F(settings[6]), np.inf
    zero, one, inputs = np.int64(0), np.int64(1), obs.shape[1]
    acts, wide = action.shape[1], padded(size)
    lines = max(padded(critic_sizes.max()), padded(actor_sizes.max()))
    q, block = space(critic_sizes, members, size)
    policy, actor_block = space(actor_sizes, one, size)
    back, flipped = np.zeros(2 * lines * wide, F), np.zeros(wide * lines, F)
    x = np.zeros((padded(inputs + acts) + 1, wide), F)
    flat_x, none = x.reshape(-1), np.zeros(0, F)
    outputs = policy[(len(actor_sizes) - 2) * actor_block :][: 2 * acts * wide].reshape(2 * acts, wide)
    places = np.array([(m * (len(critic_sizes) - 1) + len(critic_sizes) - 2) * block for m in range(members)])
    squeezed, moved, slope = np.zeros((acts, wide), F), np.zeros((acts, wide), F), np.zeros((acts, wide), F)
    log_prob, value, goal = np.zeros(wide, F), np.zeros(wide, F), np.zeros(wide, F)
    chosen, taken, found = np.zeros(wide, np.int64), np.zeros(wide, np.int64), np.zeros(5)

    for update in range(len(noise)):
        begin, weight = update * size, F(math.exp(alpha[0][0]))
        gather(next_obs, begin, size, whitening[0], whitening[1], x)
        forward(actor[0], zero, one, actor_sizes, flat_x, wide, policy, zero, actor_block, wide)
        sample(outputs, noise[update, 1], low, high, x[inputs:][:acts], squeezed, moved, log_prob, size)
        for m in range(members):
            forward(target, m, members, critic_sizes, flat_x, wide, q, places[m] - places[0], block, wide)
        aggregated(q, places, least, size, value, chosen)
        for j in range(size):
            goal[j] = reward[begin + j] + discount[begin + j] * (value[j] - weight * log_prob[j])

        gather(obs, begin, size, whitening[0], whitening[1], x)
        for j in range(size):
            for i in range(acts):
                x[inputs + i, j] = action[begin + j, i]
        regress(
            critic, target, critic_sizes, members, flat_x, wide, q, block, back, flipped, lines, size, goal, taken,
            steps[0] + update + 1, settings, found,
        )  # fmt: skip

        forward(actor[0], zero, one, actor_sizes, flat_x, wide, policy, zero, actor_block, wide)
        sample(outputs, noise[update, 0], low, high, x[inputs:][:acts], squeezed, moved, log_prob, size)
        for m in range(members):
            forward(critic[0], m, members, critic_sizes, flat_x, wide, q, places[m] - places[0], block, wide)
        aggregated(q, places, least, size, value, chosen)
        slope[:] = ZERO
        for m in range(members):
            for j in range(size):
                back[j] = (ONE if chosen[j] == m else ZERO) if least else ONE / F(members)
            at = backward(
                critic[0], none, m, members, critic_sizes, flat_x, wide, q, places[m] - places[0], block, back,
                flipped, lines, size, inputs,
            )  # fmt: skip
            for i in range(acts):
                for j in range(size):
                    slope[i, j] += back[at + i * wide + j]
        entropy, objective, half = 0.0, 0.0, HALF * (high - low)
        for j in range(size):
            entropy -= log_prob[j] / size
            objective += (value[j] - weight * log_prob[j]) / size
        for i in range(acts):
            d_mean, d_raw = back[i * wide :][:size], back[(acts + i) * wide :][:size]
            for j in range(size):
                own = x[inputs + i, j]
                d_mean[j] = (TWO * weight * own - slope[i, j] * (ONE - own * own)) / F(size)
                flat = ONE - squeezed[i, j] * squeezed[i, j]
                d_raw[j] = (d_mean[j] * moved[i, j] - weight / F(size)) * flat * half
        backward(
            actor[0], actor[1], zero, one, actor_sizes, flat_x, wide, policy, zero, actor_block, back, flipped, lines,
            size, -one,
        )  # fmt: skip
        adam(actor[0], actor[1], actor[2], actor[3], steps[1] + update + 1, rate, longest)
        if learned:
            alpha[1][0] = F(entropy - wanted)
            adam(alpha[0], alpha[1], alpha[2], alpha[3], steps[2] + update + 1, rate, infinite)
        found[2], found[3], found[4] = -objective, weight, entropy
    return found


@compiled
def deep_q(
    critic, target, steps, sizes, members, whitening, obs, action, reward, next_obs, discount, size, settings, least
):  # fmt: skip
    """As `soft_actor_critic`, for values of n actions: these are one-hot, and the critics' mean chooses the next one.

    Of `settings` it reads the learning rate, tau and the longest gradient; it returns loss and mean value.
    """
    inputs, acts, wide = obs.shape[1], action.shape[1], padded(size)
    lines = padded(sizes.max())
    q, block = space(sizes, members, size)
    back, flipped = np.zeros(2 * lines * wide, F), np.zeros(wide * lines, F)
    x, picked = np.zeros((padded(inputs) + 1, wide), F), np.zeros(members * wide, F)
    flat_x, values, whole = x.reshape(-1), np.zeros((acts, wide), F), block * (len(sizes) - 1)
    goal, best, found = np.zeros(wide, F), np.zeros(wide, np.int64), np.zeros(2)
    places = np.array([m * wide for m in range(members)])

    for update in range(len(obs) // size):
        begin = update * size
        gather(next_obs, begin, size, whitening[0], whitening[1], x)
        values[:] = ZERO
        for m in range(members):
            forward(critic[0], m, members, sizes, flat_x, wide, q, m * whole, block, wide)
            for i in range(acts):
                row = q[(m + 1) * whole - block + i * wide :][:size]
                for j in range(size):
                    values[i, j] += row[j]
        for j in range(size):
            best[j] = values[:, j].argmax()
        for m in range(members):
            forward(target, m, members, sizes, flat_x, wide, q, m * whole, block, wide)
            for j in range(size):
                picked[m * wide + j] = q[(m + 1) * whole - block + best[j] * wide + j]
        aggregated(picked, places, least, size, goal, best)
        for j in range(size):
            goal[j] = reward[begin + j] + discount[begin + j] * goal[j]

        gather(obs, begin, size, whitening[0], whitening[1], x)
        for j in range(size):
            best[j] = action[begin + j].argmax()
        regress(
            critic, target, sizes, members, flat_x, wide, q, block, back, flipped, lines, size, goal, best,
            steps[0] + update + 1, settings, found,
        )  # fmt: skip
    return found
