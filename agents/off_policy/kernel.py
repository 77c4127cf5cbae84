# mypy: allow-untyped-defs
"""Many updates of SAC, or of DQN, in one compiled call: gather, forward, targets, backward, clip of the gradient, Adam.

The arithmetic is that of `agents.off_policy.closed_form` and of `agents.off_policy.dqn`; the pieces, and how
numbers lie in memory, are those of `lodestar.numerics.kernel`. Networks are `Stacked` ones: K members side by side,
whose weights (K, I, O) and biases (K, 1, O) follow each other, layer by layer, in one vector; between them are ReLUs.

    net       (members K, sizes of the layers, memory for their outputs, numbers that a layer has there)
    scratch   (slopes in a layer's outputs and inputs, a transposed slope, its row length)
    flat      (values, gradients, Adam's first moment, its second), float32 (P,) each

A layer's numbers lie as (units, wide), where `wide` is the minibatch in whole tiles; `size` is the minibatch itself.
Rounding differs from torch's; repeated on one processor, and in blocks of any length, it gives the same bits.
"""

import math

import numpy as np

from lodestar.numerics.kernel import HALF, ONE, ZERO, F, adam, compiled, padded_columns, product, transpose

TWO = F(2)
LOG2 = F(math.log(2))
HALF_LOG_TAU = F(0.5 * math.log(2 * math.pi))
MAX_WHITENED_OBS = F(10)


@compiled
def forward(value, member, net, x, wide):
    """A member's layers for x (I, wide); each layer's outputs (O, wide) are left in the net's memory."""
    members, sizes, hidden, block = net
    layers = len(sizes) - 1
    place = np.int64(0)
    one = np.int64(1)
    source = x
    source_place = np.int64(0)
    for layer in range(layers):
        inputs = sizes[layer]
        outputs = sizes[layer + 1]
        out = (member * layers + layer) * block
        weight = place + member * inputs * outputs
        bias = place + members * inputs * outputs + member * outputs
        product(value, weight, one, outputs, source, source_place, wide, hidden, out, wide, outputs, wide, inputs)
        for i in range(outputs):
            row = hidden[out + i * wide :][:wide]
            shift = value[bias + i]
            for j in range(wide):
                row[j] += shift
            if layer < layers - 1:
                for j in range(wide):
                    # NaN is not below 0, and so stays.
                    row[j] = ZERO if row[j] < ZERO else row[j]
        source = hidden
        source_place = out
        place += members * (inputs + 1) * outputs


@compiled
def backward(value, grad, member, net, x, scratch, wide, size, first):
    """From the slope in the outputs, the first rows of `scratch`, to all gradients, and to the slope in inputs.

    `grad` of no length is left alone. With `first` >= 0 the slope in the inputs from that one on is computed too; it
    lies in `scratch` from the returned place on.
    """
    members, sizes, hidden, block = net
    slopes, transposed, row_length = scratch
    layers = len(sizes) - 1
    place = np.int64(0)
    one = np.int64(1)
    for layer in range(layers):
        place += members * (sizes[layer] + 1) * sizes[layer + 1]
    # Slopes in a layer's outputs and in its inputs lie in two halves of `slopes`, which change roles.
    above = np.int64(0)
    below = block
    for layer in range(layers - 1, -1, -1):
        inputs = sizes[layer]
        outputs = sizes[layer + 1]
        out = (member * layers + layer) * block
        place -= members * (inputs + 1) * outputs
        weight = place + member * inputs * outputs
        bias = place + members * inputs * outputs + member * outputs
        for i in range(outputs):
            slope = slopes[above + i * wide :][:wide]
            if layer < layers - 1:
                activation = hidden[out + i * wide :][:wide]
                for j in range(wide):
                    slope[j] = slope[j] if activation[j] > ZERO else ZERO
            if len(grad):
                total = ZERO
                for j in range(size):
                    total += slope[j]
                grad[bias + i] = total
        if len(grad):
            source = x
            source_place = np.int64(0)
            if layer > 0:
                source = hidden
                source_place = out - block
            transpose(slopes, above, wide, transposed, np.int64(0), row_length, outputs, wide)
            product(
                source, source_place, wide, one, transposed, np.int64(0), row_length,
                grad, weight, outputs, inputs, outputs, size,
            )  # fmt: skip
        begin = np.int64(0) if layer else first
        if begin >= 0:
            product(
                value, weight + begin * outputs, outputs, one, slopes, above, wide,
                slopes, below, wide, inputs - begin, wide, outputs,
            )  # fmt: skip
            above, below = below, above
    return above


@compiled
def gather(source, begin, size, mean, scale, x):
    """Rows of observations (N, D) from `begin` on, whitened, as the columns of x."""
    for j in range(size):
        for i in range(source.shape[1]):
            z = (source[begin + j, i] - mean[i]) * scale[i]
            z = MAX_WHITENED_OBS if z > MAX_WHITENED_OBS else z
            x[i, j] = -MAX_WHITENED_OBS if z < -MAX_WHITENED_OBS else z


@compiled
def sample(out, noise, low, high, action, squeezed, deviation, log_prob, size):
    """As `agents.off_policy.sac.squash`: actions (A, B) of a Gaussian behind a tanh, and their log-densities.

    `squeezed` (A, B) becomes the tanh of the raw log deviations, `deviation` (A, B) the deviation times the noise.
    """
    actions = len(action)
    half = HALF * (high - low)
    for j in range(size):
        log_prob[j] = ZERO
    for i in range(actions):
        for j in range(size):
            squeezed[i, j] = F(math.tanh(out[actions + i, j]))
            log_std = low + half * (squeezed[i, j] + ONE)
            deviation[i, j] = F(math.exp(log_std)) * noise[j, i]
            u = out[i, j] + deviation[i, j]
            softplus = max(-TWO * u, ZERO) + F(math.log1p(math.exp(-abs(TWO * u))))
            action[i, j] = F(math.tanh(u))
            log_slope = TWO * (LOG2 - u - softplus)
            log_prob[j] -= HALF * noise[j, i] * noise[j, i] + HALF_LOG_TAU + log_std + log_slope


@compiled
def make_net(sizes, members, wide):
    """Networks of these layers with memory for a minibatch, as `forward` and `backward` take them."""
    block = padded_columns(sizes.max()) * wide
    return members, sizes, np.zeros(members * (len(sizes) - 1) * block, F), block


@compiled
def output_places(net):
    """Where in the net's memory each member's outputs begin."""
    members, sizes, _, block = net
    layers = len(sizes) - 1
    return np.array([(member * layers + layers - 1) * block for member in range(members)])


@compiled
def aggregate(hidden, places, least, size, value, chosen):
    """The least of the members' values, and `chosen`, whose it is; or their mean."""
    for j in range(size):
        value[j] = hidden[places[0] + j]
        chosen[j] = 0
    for member in range(1, len(places)):
        for j in range(size):
            other = hidden[places[member] + j]
            if not least:
                value[j] += other
            elif other < value[j] or other != other:
                value[j] = other
                chosen[j] = member
    if not least:
        for j in range(size):
            value[j] /= F(len(places))


@compiled
def regress(
    critic, target, net, x, scratch, wide, size, goal, index, step, settings, metrics
):  # fmt: skip
    """A step of the critics, whose outputs number `index` for x are to be `goal`, and of their targets after them."""
    members, sizes, hidden, _ = net
    slopes = scratch[0]
    places = output_places(net)
    # The gradient of outputs that were not taken is 0.
    outputs = sizes[-1] * wide
    metrics[0] = 0.0
    metrics[1] = 0.0
    for member in range(members):
        forward(critic[0], member, net, x, wide)
        slopes[:outputs] = ZERO
        for j in range(size):
            value = hidden[places[member] + index[j] * wide + j]
            slopes[index[j] * wide + j] = (value - goal[j]) / F(size)
            metrics[0] += 0.5 * (value - goal[j]) ** 2 / size
            metrics[1] += value / (size * members)
        backward(critic[0], critic[1], member, net, x, scratch, wide, size, np.int64(-1))
    adam(critic[0], critic[1], critic[2], critic[3], step, settings[0], settings[2])
    for i in range(len(target)):
        target[i] += F(settings[1]) * (critic[0][i] - target[i])


@compiled
def action_slopes(critic, net, x, scratch, wide, size, inputs, chosen, least, slope):
    """The slope (A, B) of a state's value in the action, which is the inputs from `inputs` on."""
    members = net[0]
    slopes = scratch[0]
    no_grad = np.zeros(0, F)
    slope[:] = ZERO
    for member in range(members):
        for j in range(size):
            if least:
                slopes[j] = ONE if chosen[j] == member else ZERO
            else:
                slopes[j] = ONE / F(members)
        place = backward(critic[0], no_grad, member, net, x, scratch, wide, size, inputs)
        for i in range(len(slope)):
            for j in range(size):
                slope[i, j] += slopes[place + i * wide + j]


@compiled
def policy_slopes(action, slope, squeezed, deviation, alpha, half, slopes, wide, size):
    """The slope of the policy's loss in its outputs, means and raw log deviations, as the first rows of `slopes`."""
    actions = len(slope)
    for i in range(actions):
        d_mean = slopes[i * wide :][:size]
        d_raw = slopes[(actions + i) * wide :][:size]
        for j in range(size):
            a = action[i, j]
            d_mean[j] = (TWO * alpha * a - slope[i, j] * (ONE - a * a)) / F(size)
            d_tanh = ONE - squeezed[i, j] * squeezed[i, j]
            d_raw[j] = (d_mean[j] * deviation[i, j] - alpha / F(size)) * d_tanh * half


@compiled
def soft_actor_critic(
    critic, target, steps, critic_sizes, members, whitening, obs, action, reward, next_obs, discount, size, settings,
    least, actor, log_alpha, actor_sizes, noise,
):  # fmt: skip
    """Learn from minibatches in a row; of the last: loss of critics, mean value, loss of actor, alpha, entropy.

    Args:
        critic, actor, log_alpha: values, gradients, and Adam's two moments, float32 (P,).
        target: of the critics, (P,); steps: of critics, actor and alpha so far.
        critic_sizes, actor_sizes: units from the inputs to the outputs; members: how many critics.
        whitening: (2, D), mean and reciprocal deviation; obs to discount: rows, float32.
        noise: (updates, 2, size, A), for the action now and the next one.
        settings: learning rate, tau, longest gradient, target entropy, whether alpha is learned, lowest and highest
            log deviation; least: whether a state is worth the least of the critics' values, else their mean.
    """
    low = F(settings[5])
    high = F(settings[6])
    zero = np.int64(0)
    inputs = obs.shape[1]
    actions = action.shape[1]
    wide = padded_columns(size)
    critics = make_net(critic_sizes, members, wide)
    policy = make_net(actor_sizes, np.int64(1), wide)
    row_length = max(padded_columns(critic_sizes.max()), padded_columns(actor_sizes.max()))
    slopes = np.zeros(2 * row_length * wide, F)
    scratch = (slopes, np.zeros(wide * row_length, F), row_length)
    x = np.zeros((padded_columns(inputs + actions) + 1, wide), F)
    flat_x = x.reshape(-1)
    own_action = x[inputs:][:actions]
    policy_place = output_places(policy)[0]
    outputs = policy[2][policy_place:][: 2 * actions * wide].reshape(2 * actions, wide)
    q = critics[2]
    places = output_places(critics)
    squeezed = np.zeros((actions, wide), F)
    deviation = np.zeros((actions, wide), F)
    slope = np.zeros((actions, wide), F)
    log_prob = np.zeros(wide, F)
    value = np.zeros(wide, F)
    goal = np.zeros(wide, F)
    chosen = np.zeros(wide, np.int64)
    single_output = np.zeros(wide, np.int64)
    metrics = np.zeros(5)

    for update in range(len(noise)):
        begin = update * size
        alpha = F(math.exp(log_alpha[0][0]))
        gather(next_obs, begin, size, whitening[0], whitening[1], x)
        forward(actor[0], zero, policy, flat_x, wide)
        sample(outputs, noise[update, 1], low, high, own_action, squeezed, deviation, log_prob, size)
        for member in range(members):
            forward(target, member, critics, flat_x, wide)
        aggregate(q, places, least, size, value, chosen)
        for j in range(size):
            goal[j] = reward[begin + j] + discount[begin + j] * (value[j] - alpha * log_prob[j])

        gather(obs, begin, size, whitening[0], whitening[1], x)
        for j in range(size):
            for i in range(actions):
                own_action[i, j] = action[begin + j, i]
        step = steps[0] + update + 1
        regress(critic, target, critics, flat_x, scratch, wide, size, goal, single_output, step, settings, metrics)

        forward(actor[0], zero, policy, flat_x, wide)
        sample(outputs, noise[update, 0], low, high, own_action, squeezed, deviation, log_prob, size)
        for member in range(members):
            forward(critic[0], member, critics, flat_x, wide)
        aggregate(q, places, least, size, value, chosen)
        action_slopes(critic, critics, flat_x, scratch, wide, size, inputs, chosen, least, slope)
        entropy = 0.0
        objective = 0.0
        for j in range(size):
            entropy -= log_prob[j] / size
            objective += (value[j] - alpha * log_prob[j]) / size
        half = HALF * (high - low)
        policy_slopes(own_action, slope, squeezed, deviation, alpha, half, slopes, wide, size)
        backward(actor[0], actor[1], zero, policy, flat_x, scratch, wide, size, np.int64(-1))
        step = steps[1] + update + 1
        adam(actor[0], actor[1], actor[2], actor[3], step, settings[0], settings[2])
        if settings[4] > 0:
            log_alpha[1][0] = F(entropy - settings[3])
            step = steps[2] + update + 1
            adam(log_alpha[0], log_alpha[1], log_alpha[2], log_alpha[3], step, settings[0], np.inf)
        metrics[2] = -objective
        metrics[3] = alpha
        metrics[4] = entropy
    return metrics


@compiled
def deep_q(
    critic, target, steps, sizes, members, whitening, obs, action, reward, next_obs, discount, size, settings, least
):  # fmt: skip
    """As `soft_actor_critic`, for values of n actions: these are one-hot, and the critics' mean chooses the next one.

    Of `settings` it reads the learning rate, tau and the longest gradient; it returns loss and mean value.
    """
    inputs = obs.shape[1]
    actions = action.shape[1]
    wide = padded_columns(size)
    critics = make_net(sizes, members, wide)
    row_length = padded_columns(sizes.max())
    scratch = (np.zeros(2 * row_length * wide, F), np.zeros(wide * row_length, F), row_length)
    x = np.zeros((padded_columns(inputs) + 1, wide), F)
    flat_x = x.reshape(-1)
    q = critics[2]
    places = output_places(critics)
    total = np.zeros((actions, wide), F)
    # Values of one action, member after member, and where each member's begin.
    picked = np.zeros(members * wide, F)
    picked_places = np.array([member * wide for member in range(members)])
    goal = np.zeros(wide, F)
    index = np.zeros(wide, np.int64)
    metrics = np.zeros(2)

    for update in range(len(obs) // size):
        begin = update * size
        gather(next_obs, begin, size, whitening[0], whitening[1], x)
        total[:] = ZERO
        for member in range(members):
            forward(critic[0], member, critics, flat_x, wide)
            for i in range(actions):
                row = q[places[member] + i * wide :][:size]
                for j in range(size):
                    total[i, j] += row[j]
        for j in range(size):
            index[j] = total[:, j].argmax()
        for member in range(members):
            forward(target, member, critics, flat_x, wide)
            for j in range(size):
                picked[member * wide + j] = q[places[member] + index[j] * wide + j]
        aggregate(picked, picked_places, least, size, goal, index)
        for j in range(size):
            goal[j] = reward[begin + j] + discount[begin + j] * goal[j]

        gather(obs, begin, size, whitening[0], whitening[1], x)
        for j in range(size):
            index[j] = action[begin + j].argmax()
        step = steps[0] + update + 1
        regress(critic, target, critics, flat_x, scratch, wide, size, goal, index, step, settings, metrics)
    return metrics
