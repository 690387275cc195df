// One update of PPO, GRPO or DAPO: advantages, weights of the steps, the loss and its gradient.

// Discounted sums of the rewards from each step on
function returnsToGo(rewards, gamma) {
  const sums = new Array(rewards.length);
  let sum = 0;
  for (let t = rewards.length - 1; t >= 0; t--) sums[t] = sum = rewards[t] + gamma * sum;
  return sums;
}

// Whether the members of a group all came to the same: DAPO leaves it out
const isDead = (group) => allSame(group.map(sum));
// What each member of a group did better than the others: rewards of its members in, one number for each step out
function groupDeviations(group, kind, gamma) {
  const returns = group.map((rewards) => returnsToGo(rewards, gamma));
  if (kind === "outcome") {
    const better = deviations(returns.map((values) => values[0]));
    return { advantages: group.map((rewards, i) => rewards.map(() => better[i])), counted: better };
  }
  // Return to go: at each step, against the members that are still alive
  const advantages = returns.map((values) => values.slice());
  for (let t = 0; t < Math.max(...returns.map((values) => values.length)); t++) {
    const alive = returns.map((_, i) => i).filter((i) => t < returns[i].length);
    deviations(alive.map((i) => returns[i][t])).forEach((value, k) => { advantages[alive[k]][t] = value; });
  }
  return { advantages, counted: advantages.flat() };
}

// groups[b][i] are the rewards of member i of group b. Divided by the sample standard deviation of the group or of the batch
function groupAdvantages(groups, { kind, gamma, scale }) {
  const parts = groups.map((group) => groupDeviations(group, kind, gamma));
  const common = scale === "batch" ? spread(parts.flatMap((part) => part.counted)) + 1e-8 : 1;
  return parts.map(({ advantages, counted }) => {
    const by = scale === "group" ? spread(counted) + 1e-8 : common;
    return advantages.map((values) => values.map((value) => value / by));
  });
}

// Generalised advantage estimates of one environment's steps, across episodes. values has one more entry: that after the last step
function gaeOfSteps(rewards, values, ends, gamma, lambda) {
  const advantages = new Array(rewards.length);
  let sum = 0;
  for (let t = rewards.length - 1; t >= 0; t--) {
    const goesOn = ends[t] ? 0 : 1;
    sum = rewards[t] + gamma * values[t + 1] * goesOn - values[t] + gamma * lambda * goesOn * sum;
    advantages[t] = sum;
  }
  return advantages;
}

// Of steps that belong to episodes of these lengths: GRPO weighs episodes alike, DAPO steps
function stepWeights(lengths, mode) {
  const all = sum(lengths);
  return lengths.flatMap((length) => new Array(length).fill(mode === "step" ? 1 / all : 1 / (length * lengths.length)));
}

// Two or more logits become log probabilities, in place
function logProbabilities(logits) {
  let top = -Infinity, sum = 0;
  for (const logit of logits) top = Math.max(top, logit);
  for (const logit of logits) sum += Math.exp(logit - top);
  const total = Math.log(sum) + top;
  for (let i = 0; i < logits.length; i++) logits[i] -= total;
  return logits;
}
function entropyOf(logs) {
  let sum = 0;
  for (const log of logs) sum -= Math.exp(log) * log;
  return sum;
}

// What a policy is made of, and with PPO a critic: one array of weights, and room to compute in
function makeModel(hidden, random, withCritic, nInputs = 4, nActions = 2) {
  const actor = [nInputs, ...hidden, nActions], critic = [nInputs, ...hidden, 1];
  const parts = [Network.init(actor, random, 0.01), ...(withCritic ? [Network.init(critic, random, 1)] : [])];
  const weights = new Float64Array(parts.reduce((sum, part) => sum + part.length, 0));
  weights.set(parts[0]);
  if (withCritic) weights.set(parts[1], parts[0].length);
  return modelOf(actor, withCritic ? critic : null, weights);
}
function modelOf(actor, critic, weights) {
  const n = Network.count(actor), room = Network.room(actor), roomV = critic && Network.room(critic);
  const split = (array) => [array.subarray(0, n), array.subarray(n)];
  const [ofActor, ofCritic] = split(weights);
  return {
    actor, critic, weights, ofActor, ofCritic, room, roomV, split,
    // Log probabilities of the actions. They are overwritten by the next call
    logs(observation) { room.outputs[0].set(observation); return logProbabilities(Network.forward(actor, ofActor, room)); },
    value(observation) { roomV.outputs[0].set(observation); return Network.forward(critic, ofCritic, roomV)[0]; },
  };
}

// The loss of a step, and its derivative with respect to the log probability of the action
function stepLoss(log, oldLog, refLog, advantage, { clipLow, clipHigh, klCoef }) {
  const ratio = Math.exp(log - oldLog), [objective, byRatio] = M.clip(ratio, advantage, clipLow, clipHigh);
  let loss = -objective, slope = -ratio * byRatio;
  if (klCoef) {
    // k3, as it stands in the paper
    const distance = refLog - log;
    loss += klCoef * (Math.expm1(distance) - distance);
    slope += klCoef * (1 - Math.exp(distance));
  }
  return [loss, slope];
}

// Loss of some steps of a batch; its gradient is left in the array. weights are those of the steps, and sum to about 1
function lossAndGradient(model, batch, steps, advantages, weights, settings, gradient) {
  gradient.fill(0);
  const [actorGradient, criticGradient] = model.split(gradient), slopes = model.room.slopes.at(-1);
  let loss = 0;
  steps.forEach((i, k) => {
    const logs = model.logs(batch.observations[i]), action = batch.actions[i], entropy = settings.entCoef ? entropyOf(logs) : 0;
    const [policyLoss, slope] = stepLoss(logs[action], batch.oldLogs[i], settings.klCoef ? batch.refLogs[i] : 0, advantages[k], settings);
    loss += weights[k] * (policyLoss - settings.entCoef * entropy);
    for (let j = 0; j < slopes.length; j++) {
      const p = Math.exp(logs[j]);
      slopes[j] = weights[k] * (slope * ((j === action) - p) + settings.entCoef * p * (logs[j] + entropy));
    }
    Network.backward(model.actor, model.ofActor, model.room, actorGradient);
    if (model.critic) {
      const error = model.value(batch.observations[i]) - batch.returns[i];
      loss += (settings.vfCoef * error * error) / steps.length;
      model.roomV.slopes.at(-1)[0] = (2 * settings.vfCoef * error) / steps.length;
      Network.backward(model.critic, model.ofCritic, model.roomV, criticGradient);
    }
  });
  return loss;
}

// One step of Adam on a minibatch: returns the loss from before it
function improve(model, optimizer, batch, steps, nMinibatches, settings, gradient) {
  let advantages = steps.map((i) => batch.advantages[i]), weights;
  if (model.critic) {
    // SB3's PPO: advantages are standardised in each minibatch, and all steps weigh the same
    advantages = deviations(advantages);
    const by = spread(advantages) + 1e-8;
    advantages = advantages.map((value) => value / by);
    weights = steps.map(() => 1 / steps.length);
  } else weights = steps.map((i) => nMinibatches * batch.weights[i]);
  const loss = lossAndGradient(model, batch, steps, advantages, weights, settings, gradient);
  optimizer(model.weights, gradient);
  return loss;
}
