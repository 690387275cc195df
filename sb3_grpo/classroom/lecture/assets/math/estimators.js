// One choice between two actions: what a sample of either adds to the gradient, their mean, their noise, the best baseline
M.oneAction = (p, reward, other, baseline) => {
  const first = (reward - baseline) * (1 - p), second = -(other - baseline) * p;
  const mean = p * first + (1 - p) * second;
  const noise = Math.sqrt(p * (first - mean) ** 2 + (1 - p) * (second - mean) ** 2);
  return [first, second, mean, noise, (1 - p) * reward + p * other];
};
