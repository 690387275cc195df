// Objective and its derivative with respect to the ratio
M.clip = (ratio, advantage, low, high) => {
  const clipped = Math.min(Math.max(ratio, 1 - low), 1 + high);
  const cut = clipped * advantage < ratio * advantage;
  return [Math.min(ratio * advantage, clipped * advantage), cut ? 0 : advantage];
};
