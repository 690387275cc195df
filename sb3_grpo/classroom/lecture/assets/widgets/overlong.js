widget("overlong", {
  state: { length: 18432, max: 20480, cache: 4096 },
  guess: {
    question: "A wrong answer (reward −1) is cut off at 20,480 tokens, the paper’s L max. What is its total reward?",
    options: ["−1: it is wrong anyway", "−1.5", "−2"],
    right: 2,
    state: { length: 20480, max: 20480, cache: 4096 },
    because: "The punishment is added to the verdict, right or wrong: −1 − 1. A right answer that is cut off gets 0.",
  },
  examples: {
    "half-way": { length: 18432, max: 20480, cache: 4096 },
    "cut off": { length: 20480, max: 20480, cache: 4096 },
    "short enough": { length: 12288, max: 20480, cache: 4096 },
    "nearly a hard edge": { length: 18432, max: 20480, cache: 256 },
  },
  controls: [
    range("length", "Length of the episode", 0, 24576, 256, 0),
    range("max", "L max: full penalty from here on", 4096, 24576, 256, 0),
    range("cache", "L cache: length over which it grows", 256, 16384, 256, 0),
  ],
  draw({ length, max, cache: wanted }) {
    const cache = Math.min(wanted, max), from = max - cache, [penalty] = M.overlong(length, max, cache);
    const region = penalty === 0 ? "short enough" : penalty === -1 ? "the full penalty" : "within the margin";
    const what = `${length.toLocaleString("en")} steps: penalty ${fmt(penalty)} (${region}). A right answer is worth ${fmt(1 + penalty)}, a wrong one ${fmt(-1 + penalty)}. The penalty begins at ${from.toLocaleString("en")}.`;
    const p = plot({ x: [0, 24576], y: [-1.2, 0.2], label: what, xLabel: "length of the episode in steps", yLabel: "penalty" });
    p.vertical(from, "grey"); p.vertical(max, "grey");
    p.line([0, from, max, 24576].map((at) => [at, M.overlong(at, max, cache)[0]]), "blue");
    p.dot(length, penalty, penalty === 0 ? "green" : "orange", 8);
    // The soft punishment and the filter on the same five answers. What reaches the limit is cut off
    const lengths = [8192, 15000, 17408, 18432, 20480], all = M.lossWeights(1, 1, Infinity, ...lengths), filtered = M.lossWeights(1, 1, max - 1, ...lengths);
    const rows = lengths.map((each, i) => row([`${each.toLocaleString("en")}${each >= max ? " (cut off)" : ""}`, fmt(1 + M.overlong(each, max, cache)[0]),
      filtered[i] ? `${fmt(100 * filtered[i] * each, 0)}% (was ${fmt(100 * all[i] * each, 0)}%)` : "none: left out"], { class: filtered[i] ? "" : "dead" }));
    return pictures(
      figure(p, "The penalty by length. Dashed: L max − L cache, and L max."),
      el("div", {}, says(what), table(["Five right answers", "Soft: reward", "Filter: share of the loss"], rows),
        note("The filter leaves out what the limit cut off; here that is every answer of L max steps or more.")));
  },
});
