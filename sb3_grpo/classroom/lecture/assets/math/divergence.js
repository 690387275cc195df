const softmax = (logits) => {
  const powers = logits.map((logit) => Math.exp(logit - Math.max(...logits)));
  return powers.map((power) => power / sum(powers));
};
const expectation = (probabilities, values) => sum(probabilities.map((p, i) => p * values[i]));

// Estimates of the divergence from one action: r is the probability under the reference over that under the policy
const estimates = [(r) => -Math.log(r), (r) => Math.log(r) ** 2 / 2, (r) => r - 1 - Math.log(r)];
// Each is differentiated with respect to the log probability of the action
const slopes = [() => 1, (r) => -Math.log(r), (r) => 1 - r];

// The exact divergence; then of k1, k2 and k3: for the three actions, mean, standard deviation
M.klValues = (...weights) => {
  const p = softmax(weights.slice(0, 3).map(Math.log)), ref = softmax(weights.slice(3).map(Math.log));
  const exact = expectation(p, p.map((each, i) => Math.log(each / ref[i])));
  return [exact, ...estimates.flatMap((estimate) => {
    const values = p.map((each, i) => estimate(ref[i] / each)), mean = expectation(p, values);
    return [...values, mean, Math.sqrt(expectation(p, values.map((value) => (value - mean) ** 2)))];
  })];
};

// Gradients by the logits of the policy, three numbers each: of KL(policy || reference), of KL(reference || policy),
// of k1, k2 and k3 weighted by the ratio as in the package, and of the three as they stand
M.klGradients = (stale, ...weights) => {
  const logits = weights.slice(0, 3).map(Math.log), refLogits = weights.slice(3).map(Math.log);
  const p = softmax(logits), ref = softmax(refLogits), old = softmax(logits.map((logit, i) => (1 - stale) * logit + stale * refLogits[i]));
  const r = p.map((each, i) => ref[i] / each), ratio = p.map((each, i) => each / old[i]);
  // The sum over actions of chance times weight times gradient of the log probability
  const through = (chances, weigh) => p.map((_, j) => expectation(chances, p.map((each, i) => weigh(i) * ((i === j ? 1 : 0) - p[j]))));
  // k1 and k3 are differentiated through the ratio as well, k2 is not
  const withRatio = estimates.map((estimate, k) => through(old, (i) => ratio[i] * (slopes[k](r[i]) + (k === 1 ? 0 : estimate(r[i])))));
  const plain = slopes.map((slope) => through(old, (i) => slope(r[i])));
  return [through(p, (i) => -Math.log(r[i])), p.map((each, i) => each - ref[i]), ...withRatio, ...plain].flat();
};

// Where reward minus penalty is greatest, after resets of the reference: each time the logit grows by 1 / coefficient
M.reset = (success, coefficient, resets) => {
  const start = Math.log(success / (1 - success)) + resets / coefficient, logit = start + 1 / coefficient;
  const p = softmax([logit, 0]), ref = softmax([start, 0]);
  return [p[0], p[0] * (Math.log(p[0]) - Math.log(ref[0])) + p[1] * (Math.log(p[1]) - Math.log(ref[1]))];
};
