// Of each episode the weight of one step. mode: 0 episode (GRPO), 1 step (DAPO), 2 constant (Dr. GRPO)
M.lossWeights = (mode, constant, limit, ...lengths) => {
  const kept = lengths.map((length) => (length <= limit ? length : 0));
  const nKept = Math.max(kept.filter((length) => length > 0).length, 1), nSteps = Math.max(sum(kept), 1);
  return kept.map((length) => (length === 0 ? 0 : [1 / (length * nKept), 1 / nSteps, 1 / (nKept * constant)][mode]));
};

// DAPO's soft punishment of an episode
M.overlong = (length, max, cache) => [Math.min(Math.max((max - cache - length) / cache, -1), 0)];
