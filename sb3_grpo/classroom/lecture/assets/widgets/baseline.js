widget("baseline", {
  state: { p: 0.2, r: 10, o: 2, b: 0 },
  guess: {
    question: "Later “Canberra” has probability 0.8 and still pays 10, “Sydney” 2: 8.4 on average. Which baseline leaves the least noise now?",
    options: ["None, 0", "A smaller one, 3.6", "The average, 8.4"],
    right: 1,
    state: { p: 0.8, r: 10, o: 2, b: 3.6 },
    because: "The best baseline weights each reward by the squared score, and the rare action, now “Sydney”, has the larger score. The average is nearly always a good choice and needs no scores, so it is the usual one.",
  },
  examples: {
    "no baseline": { p: 0.2, r: 10, o: 2, b: 0 },
    "average reward": { p: 0.2, r: 10, o: 2, b: 3.6 },
    "least noise": { p: 0.2, r: 10, o: 2, b: 8.4 },
    "too large": { p: 0.2, r: 10, o: 2, b: 12 },
  },
  controls: [
    range("b", "Baseline b", 0, 12, 0.1, 1),
    range("p", "Probability of “Canberra”", 0.05, 0.95, 0.01),
    range("r", "Reward of “Canberra”", -10, 10, 0.5, 1),
    range("o", "Reward of “Sydney”", -10, 10, 0.5, 1),
  ],
  draw({ p, r, o, b }) {
    const [first, second, mean, noise, best] = M.oneAction(p, r, o, b);
    const what = `Baseline ${fmt(b, 1)}: the expected gradient is ${fmt(mean)}, as with every baseline; one sample is off by ${fmt(noise)} (standard deviation).`;
    const at = Array.from({ length: 121 }, (_, i) => i / 10);
    const noises = at.map((x) => [x, M.oneAction(p, r, o, x)[3]]);
    const top = 1.1 * Math.max(1, mean, ...noises.map(([, y]) => y));
    const plane = plot({ x: [0, 12], y: [Math.min(0, 1.1 * mean), top], label: what, xLabel: "baseline b", yLabel: "gradient" });
    plane.line(at.map((x) => [x, mean]), "blue dashed");
    plane.line(noises, "orange");
    if (best >= 0 && best <= 12) plane.vertical(best, "grey");
    plane.dot(b, noise, "orange", 8);
    const action = (name, share, reward, adds) => [name, fmt(share), fmt(reward, 1), fmt(reward - b, 1), fmt(adds)];
    return pictures(
      figure(plane, "Orange: standard deviation of one sample’s gradient. Blue, dashed: its expectation. Grey: the baseline with the least noise."),
      el("div", {}, says(what), table(["action", "π", "R", "R − b", "adds to the gradient"], [action("Canberra", p, r, first), action("Sydney", 1 - p, o, second)])));
  },
});
