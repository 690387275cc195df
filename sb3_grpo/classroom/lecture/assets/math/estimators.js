// A corridor of five places and ten steps; beyond its right end it pays 1. All walks are listed, so nothing is sampled.
const CORRIDOR = (() => {
  const right = [0.3, -0.2, 0.1, 0, 0.4].map((logit) => 1 / (1 + Math.exp(-logit)));
  const nSteps = 10, nPlaces = right.length;
  const values = Array.from({ length: nSteps + 1 }, () => right.map(() => 0));
  for (let t = nSteps - 1; t >= 0; t--) {
    for (let place = 0; place < nPlaces; place++) {
      const above = place + 1 < nPlaces ? values[t + 1][place + 1] : 1, below = place > 0 ? values[t + 1][place - 1] : 0;
      values[t][place] = right[place] * above + (1 - right[place]) * below;
    }
  }
  const walks = [];
  function walk(place, probability, places, scores) {
    const inside = place >= 0 && place < nPlaces;
    if (!inside || places.length === nSteps) {
      walks.push({ probability, places, scores, reward: place === nPlaces ? 1 : 0 });
      return;
    }
    const p = right[place];
    walk(place + 1, probability * p, [...places, place], [...scores, 1 - p]);
    walk(place - 1, probability * (1 - p), [...places, place], [...scores, -p]);
  }
  walk(nPlaces >> 1, 1, [], []);
  // The gradient that each walk is: scores times advantages, by place
  const gradient = ({ places, scores }, advantage) => {
    const sum = right.map(() => 0);
    places.forEach((place, t) => { sum[place] += scores[t] * advantage(t); });
    return sum;
  };
  const square = (vector) => vector.reduce((sum, x) => sum + x * x, 0);
  const expect = (of) => walks.reduce((sum, each) => sum + each.probability * of(each), 0);
  const exact = right.map(() => 0);
  for (const each of walks) gradient(each, () => each.reward).forEach((x, i) => { exact[i] += each.probability * x; });
  return { values, walks, gradient, square, expect, exact, start: nPlaces >> 1 };
})();

// Bias and noise (of one episode) in lengths of the true gradient; advantagesOf(walk): one number for each of its steps
function biasAndNoise(advantagesOf) {
  const { walks, gradient, square, exact } = CORRIDOR;
  const mean = exact.map(() => 0);
  let second = 0;
  for (const each of walks) {
    const advantages = advantagesOf(each), one = gradient(each, (t) => advantages[t]);
    one.forEach((x, i) => { mean[i] += each.probability * x; });
    second += each.probability * square(one);
  }
  const length = Math.sqrt(square(exact));
  const bias = Math.sqrt(square(mean.map((x, i) => x - exact[i])));
  return [bias / length, Math.sqrt(Math.max(second - square(mean), 0)) / length];
}

// The critic's error: 0 exact, 1 the value of the start everywhere
function residuals({ places, reward }, error) {
  const { values, start } = CORRIDOR;
  const critic = places.map((place, t) => (1 - error) * values[t][place] + error * values[0][start]);
  return critic.map((value, t) => (t + 1 < critic.length ? critic[t + 1] : reward) - value);
}

M.gaeError = (lambda, error) => biasAndNoise((walk) => {
  const advantages = residuals(walk, error);
  for (let t = advantages.length - 2; t >= 0; t--) advantages[t] += lambda * advantages[t + 1];
  return advantages;
});
M.kStepError = (k, error) => biasAndNoise((walk) => {
  const deltas = residuals(walk, error);
  return deltas.map((_, t) => deltas.slice(t, t + k + 1).reduce((sum, delta) => sum + delta, 0));
});
M.plainError = () => biasAndNoise(({ places, reward }) => places.map(() => reward));

// Outcomes minus their mean over the group: a mean over pairs of members, whose variance has two parts (Hoeffding, 1948).
// The scores have the mean 0, which leaves three expectations
M.groupError = (size, leaveOneOut) => {
  const { gradient, square, expect, exact } = CORRIDOR;
  const mean = expect(({ reward }) => reward), squared = square(exact);
  const scored = (walk) => square(gradient(walk, () => 1));
  const both = expect((walk) => scored(walk) * (walk.reward - mean) ** 2);
  const apart = expect(scored) * expect(({ reward }) => (reward - mean) ** 2);
  const one = (both - squared) / 4, two = (both + apart) / 2;
  const variance = (4 * (size - 2) * one + 2 * two) / (size * (size - 1));
  const share = leaveOneOut ? 1 : (size - 1) / size;
  return [1 - share, share * Math.sqrt((size * variance) / squared)];
};

// One choice between two actions: what a sample of either adds to the gradient, their mean, their noise, the best baseline
M.oneAction = (p, reward, other, baseline) => {
  const first = (reward - baseline) * (1 - p), second = -(other - baseline) * p;
  const mean = p * first + (1 - p) * second;
  const noise = Math.sqrt(p * (first - mean) ** 2 + (1 - p) * (second - mean) ** 2);
  return [first, second, mean, noise, (1 - p) * reward + p * other];
};
