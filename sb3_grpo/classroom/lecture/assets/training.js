// An agent that learns CartPole, in small slices: a generator that can be left at each yield.
const TIME_LIMIT = 500;
const LIVE_ALGORITHMS = {
  PPO: { critic: true, clipHigh: 0.2, klCoef: 0 },
  GRPO: { average: "episode", clipHigh: 0.2, klCoef: 0.04, dropDead: false },
  DAPO: { average: "step", clipHigh: 0.28, klCoef: 0, dropDead: true },
};
const TRAINING = {
  hidden: [16], lr: 0.01, clip: true, kind: "return_to_go", groupSize: 8, budget: 60000,
  nGroups: 2, rounds: 4, nEnvs: 8, nSteps: 128, epochs: 10, batch: 256, gamma: 0.99, lambda: 0.95,
  clipLow: 0.2, entCoef: 0, vfCoef: 0.5,
};

function drawAction(logs, random) {
  let left = random.uniform();
  for (let action = 0; action < logs.length - 1; action++) if ((left -= Math.exp(logs[action])) < 0) return action;
  return logs.length - 1;
}

// One step of an episode, written down in the batch
function act(model, state, batch, random) {
  const observation = CartPole.observe(state), logs = model.logs(observation), action = drawAction(logs, random);
  batch.observations.push(observation); batch.actions.push(action); batch.oldLogs.push(logs[action]); batch.entropies.push(entropyOf(logs));
  return CartPole.step(state, action);
}

function* playEpisode(model, state, random) {
  const episode = { observations: [], actions: [], oldLogs: [], entropies: [], rewards: [] };
  for (let t = 0, ended = false; t < TIME_LIMIT && !ended; t++) {
    ({ state, ended } = act(model, state, episode, random));
    episode.rewards.push(1);
    if (t % 128 === 127) yield;
  }
  return episode;
}

// Groups that each begin in one state. DAPO leaves out those whose members all did the same, and draws others
function* collectGroups(run) {
  const { settings, random } = run, live = [], entropies = [];
  let nDead = 0, nGroups = 0;
  for (let round = 0; round < (settings.dropDead ? settings.rounds : 1) && live.length < settings.nGroups; round++) {
    for (let missing = settings.nGroups - live.length; missing > 0; missing--) {
      const start = CartPole.start(random), group = [];
      for (let i = 0; i < settings.groupSize; i++) { group.push(yield* playEpisode(run.model, start, random)); yield; }
      const rewards = group.map((episode) => episode.rewards), dead = isDead(rewards);
      run.ended(rewards.map((each) => each.length));
      entropies.push(...group.map((episode) => meanOf(episode.entropies)));
      nGroups++;
      nDead += dead;
      if (!dead || !settings.dropDead) live.push(group);
    }
  }
  const groups = live.map((group) => group.map((episode) => episode.rewards));
  // The papers do not discount
  const advantages = groupAdvantages(groups, { kind: settings.kind, gamma: settings.kind === "outcome" ? 1 : settings.gamma, scale: settings.kind === "outcome" ? "group" : "batch" });
  const all = (name) => live.flatMap((group) => group.flatMap((episode) => episode[name]));
  const batch = { observations: all("observations"), actions: all("actions"), oldLogs: all("oldLogs"), entropies, dead: nDead / nGroups };
  return { ...batch, advantages: advantages.flat(2), weights: stepWeights(groups.flat().map((rewards) => rewards.length), settings.average) };
}

// PPO: a fixed number of steps of several environments, whose episodes go on in the next update; the critic says what the rest is worth
function* collectSteps(run) {
  const { settings, random, model } = run, { nEnvs, nSteps, gamma, lambda } = settings;
  const batch = { observations: [], actions: [], oldLogs: [], entropies: [], advantages: [], returns: [], dead: null };
  run.envs ||= Array.from({ length: nEnvs }, () => ({ state: CartPole.start(random), t: 0 }));
  for (const env of run.envs) {
    const rewards = [], values = [], ends = [];
    for (let step = 0; step < nSteps; step++) {
      values.push(model.value(CartPole.observe(env.state)));
      const { state, ended } = act(model, env.state, batch, random), isLate = ++env.t === TIME_LIMIT;
      // As in SB3: where the limit cut an episode off, the critic says what would have come
      rewards.push(1 + (isLate && !ended ? gamma * model.value(CartPole.observe(state)) : 0));
      ends.push(ended || isLate);
      env.state = state;
      if (ended || isLate) { run.ended([env.t]); env.state = CartPole.start(random); env.t = 0; }
    }
    values.push(model.value(CartPole.observe(env.state)));
    const advantages = gaeOfSteps(rewards, values, ends, gamma, lambda);
    batch.advantages.push(...advantages);
    batch.returns.push(...advantages.map((value, t) => value + values[t]));
    yield;
  }
  return batch;
}

function shuffled(n, random) {
  const order = Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) { const j = random.below(i + 1); [order[i], order[j]] = [order[j], order[i]]; }
  return order;
}

// Cut into equal minibatches: none has only a few steps
function minibatches(order, size) {
  const n = Math.max(1, Math.round(order.length / size));
  return Array.from({ length: n }, (_, k) => order.slice(Math.round((k * order.length) / n), Math.round(((k + 1) * order.length) / n)));
}

// points of the curve: steps so far, mean return of the last episodes, entropy, share of dead groups
function makeRun(algorithm, seed, given) {
  const settings = { ...TRAINING, ...LIVE_ALGORITHMS[algorithm], ...given };
  if (!settings.clip) settings.clipLow = settings.clipHigh = Infinity;
  const run = { algorithm, seed, settings, steps: 0, lengths: [], points: [], done: false };
  run.model = makeModel(settings.hidden, chance(seed), settings.critic);
  run.random = chance(seed + 1000);
  run.ended = (lengths) => { run.lengths.push(...lengths); };
  run.slices = slices(run);
  return run;
}

function* slices(run) {
  const { settings, model, random } = run, gradient = new Float64Array(model.weights.length);
  const optimizer = adam(model.weights.length, settings);
  const start = settings.klCoef ? modelOf(model.actor, null, model.ofActor.slice()) : null;
  while (run.steps < settings.budget) {
    const before = run.lengths.length;
    const batch = yield* settings.critic ? collectSteps(run) : collectGroups(run);
    run.steps += settings.critic ? batch.actions.length : sum(run.lengths.slice(before));
    run.lengths = run.lengths.slice(-32);
    run.points.push([run.steps, meanOf(run.lengths.length ? run.lengths : [0]), meanOf(batch.entropies), batch.dead]);
    // Nothing to learn from: all groups are dead
    if (!batch.actions.length) { yield; continue; }
    if (start) batch.refLogs = batch.observations.map((observation, i) => start.logs(observation)[batch.actions[i]]);
    for (let epoch = 0; epoch < settings.epochs; epoch++) {
      const parts = minibatches(shuffled(batch.actions.length, random), settings.batch);
      for (const part of parts) { improve(model, optimizer, batch, part, parts.length, settings, gradient); yield; }
    }
  }
  run.done = true;
}
