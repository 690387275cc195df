// How hard a step pushes its action, over the log of the ratio: clip, CISPO, DPPO, importance sampling, SAPO
M.pushes = (ratio, advantage, low, high, old) => {
  const moved = old * (ratio - 1), tau = advantage > 0 ? 1 : 1.05;
  const gate = 1 / (1 + Math.exp(-tau * (ratio - 1)));
  const isCut = (advantage > 0 && moved > high) || (advantage < 0 && moved < -low);
  return [
    M.clip(ratio, advantage, low, high)[1] * ratio,
    Math.min(Math.max(ratio, 1 - low), 1 + high) * advantage,
    isCut ? 0 : ratio * advantage,
    ratio * advantage,
    4 * gate * (1 - gate) * ratio * advantage,
  ];
};
