// Two states: staying pays 1 in the first and 2 in the second, going pays nothing; logits of staying are the parameters.
const REGION = { gamma: 0.9, pays: [1, 2], reach: 6, epochs: 10 };
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const within = (theta) => theta.map((x) => Math.min(Math.max(x, -REGION.reach), REGION.reach));

// Solves [[a, b], [c, d]] x = e
function solve2([[a, b], [c, d]], [e, f]) {
  const det = a * d - b * c;
  return [(e * d - b * f) / det, (a * f - e * c) / det];
}

function policyFacts(theta) {
  const { gamma, pays } = REGION;
  const stay = theta.map(sigmoid);
  const system = [[1 - gamma * stay[0], -gamma * (1 - stay[0])], [-gamma * (1 - stay[1]), 1 - gamma * stay[1]]];
  const values = solve2(system, stay.map((p, s) => p * pays[s]));
  const visits = solve2([[system[0][0], system[1][0]], [system[0][1], system[1][1]]], [1, 0]);
  const advantages = values.map((value, s) => [pays[s] + gamma * value - value, gamma * values[1 - s] - value]);
  const spread = stay.map((p, s) => visits[s] * p * sigmoid(-theta[s]));
  return { stay, values, visits, advantages,
    gradient: spread.map((x, s) => x * (advantages[s][0] - advantages[s][1])), fisher: spread.map((x) => (1 - gamma) * x) };
}

const binaryKl = (a, b) => {
  const log = (x) => -Math.log1p(Math.exp(-x));
  return sigmoid(a) * (log(a) - log(b)) + sigmoid(-a) * (log(-a) - log(-b));
};

M.twoStates = (first, second) => {
  const { values, visits, advantages, gradient, fisher } = policyFacts([first, second]);
  return [values[0], ...visits, ...advantages.flat(), ...gradient, ...fisher];
};
M.vanillaStep = (first, second, rate) => {
  const { gradient } = policyFacts([first, second]);
  return within([first + rate * gradient[0], second + rate * gradient[1]]);
};
// alpha F⁻¹ g, with alpha = √(2 delta / gᵀ F⁻¹ g): F is diagonal here
M.naturalStep = (first, second, delta) => {
  const { gradient, fisher } = policyFacts([first, second]);
  const direction = gradient.map((g, s) => g / fisher[s]);
  const alpha = Math.sqrt((2 * delta) / (gradient[0] * direction[0] + gradient[1] * direction[1]));
  return within([first + alpha * direction[0], second + alpha * direction[1]]);
};
// The same length in KL, alpha = √(2 delta / gᵀ F g), along the gradient itself
M.scaledStep = (first, second, delta) => {
  const { gradient, fisher } = policyFacts([first, second]);
  const alpha = Math.sqrt((2 * delta) / gradient.reduce((sum, g, s) => sum + g * g * fisher[s], 0));
  return within([first + alpha * gradient[0], second + alpha * gradient[1]]);
};
// Ten epochs on the clipped surrogate, each with a tenth of the learning rate
M.clippedStep = (first, second, rate, epsilon) => {
  const old = [first, second], { stay, visits, advantages } = policyFacts(old);
  let now = [...old];
  for (let epoch = 0; epoch < REGION.epochs; epoch++) {
    const p = now.map(sigmoid);
    now = now.map((x, s) => {
      const slope = [stay[s], 1 - stay[s]].map((before, action) => {
        const ratio = (action ? 1 - p[s] : p[s]) / before;
        return before * M.clip(ratio, advantages[s][action], epsilon, epsilon)[1] * ((action ? -1 : 1) * p[s] * (1 - p[s]) / before);
      });
      return x + (rate / REGION.epochs) * visits[s] * (slope[0] + slope[1]);
    });
  }
  return within(now);
};
// Mean KL, largest KL, what the surrogate expects of the return, what theory promises at least, the return
M.stepFacts = (first, second, newFirst, newSecond) => {
  const { gamma } = REGION, { values, visits, advantages } = policyFacts([first, second]);
  const kls = [binaryKl(first, newFirst), binaryKl(second, newSecond)], after = [newFirst, newSecond].map(sigmoid);
  const expected = values[0] + visits.reduce((sum, v, s) => sum + v * (after[s] * advantages[s][0] + (1 - after[s]) * advantages[s][1]), 0);
  const worst = (4 * Math.max(...advantages.flat().map(Math.abs)) * gamma * Math.max(...kls)) / (1 - gamma) ** 2;
  return [(1 - gamma) * (visits[0] * kls[0] + visits[1] * kls[1]), Math.max(...kls), expected, expected - worst, policyFacts([newFirst, newSecond]).values[0]];
};
