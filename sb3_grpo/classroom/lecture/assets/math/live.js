// What learning is made of, on random batches, for the comparison with the package.

// Two groups of three, and one whose members all did the same
function randomGroups(random) {
  const group = (rewards) => [0, 1, 2].map(() => Array.from({ length: 1 + random.below(6) }, rewards));
  return [group(() => random.uniform(-1, 1)), group(() => random.uniform(-1, 1)), [[1, 1], [1, 1], [1, 1]]];
}

M.sampledAdvantages = (seed, kind, gamma, scale) => {
  const settings = { kind: ["outcome", "return_to_go"][kind], gamma, scale: ["group", "batch"][scale] };
  return groupAdvantages(randomGroups(chance(seed)), settings).flat(2);
};

M.sampledGae = (seed, gamma, lambda) => {
  const random = chance(seed), list = (n, draw) => Array.from({ length: n }, draw);
  const rewards = list(12, () => random.uniform(-1, 1)), values = list(13, () => random.uniform(-2, 2)), ends = list(12, () => random.below(4) === 0);
  return gaeOfSteps(rewards, values, ends, gamma, lambda);
};

// Three steps of Adam on two minibatches: the losses, the gradient of the first, and the weights after the third.
// Ten times the ordinary learning rate, so that the ratios leave the clip range
M.learn = (algorithm, seed) => {
  const name = ["PPO", "GRPO", "DAPO"][algorithm], settings = { ...TRAINING, ...LIVE_ALGORITHMS[name], lr: 0.1, entCoef: 0.01 };
  const random = chance(seed), all = randomGroups(random), groups = settings.dropDead ? all.filter((group) => !isDead(group)) : all;
  const lengths = groups.flat().map((rewards) => rewards.length), n = lengths.reduce((sum, length) => sum + length, 0);
  const list = (draw) => Array.from({ length: n }, draw);
  const actor = [4, 3, 2, 2], critic = settings.critic ? [4, 3, 2, 1] : null;
  const nWeights = Network.count(actor) + (critic ? Network.count(critic) : 0);
  const model = modelOf(actor, critic, Float64Array.from({ length: nWeights }, () => random.uniform(-1, 1)));
  const batch = { observations: list(() => [0, 0, 0, 0].map(() => random.uniform(-1, 1))), actions: list(() => random.below(2)) };
  const off = () => batch.observations.map((observation, i) => model.logs(observation)[batch.actions[i]] + random.uniform(-0.4, 0.4));
  batch.oldLogs = off();
  batch.refLogs = off();
  if (settings.critic) Object.assign(batch, { advantages: list(() => random.uniform(-2, 2)), returns: list(() => random.uniform(-2, 2)) });
  else {
    batch.advantages = groupAdvantages(groups, { kind: "outcome", gamma: 1, scale: "group" }).flat(2);
    batch.weights = stepWeights(lengths, settings.average);
  }
  const order = batch.actions.map((_, i) => i), half = Math.floor(n / 2), parts = [order.slice(0, half), order.slice(half)];
  const optimizer = adam(model.weights.length, settings), gradient = new Float64Array(model.weights.length);
  const step = (part) => improve(model, optimizer, batch, part, parts.length, settings, gradient);
  const losses = [step(parts[0])], first = gradient.slice();
  losses.push(step(parts[1]), step(parts[0]));
  return [...losses, ...first, ...model.weights];
};
