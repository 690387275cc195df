// Ratio of the probability of an action to the one that it was sampled with, and whether its gradient is cut off below and above
M.judged = (logProb, oldLogProb, advantage, low, high) => {
  const ratio = Math.exp(logProb - oldLogProb);
  return [ratio, +(advantage < 0 && ratio < 1 - low), +(advantage > 0 && ratio > 1 + high)];
};
