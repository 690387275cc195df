widget("group-size", {
  state: { p: 0.5, G: 4 },
  guess: {
    question: "A question is answered right with probability 0.9, and G = 8. What share of its groups is dead?",
    options: ["1%", "10%", "43%"],
    right: 2,
    because: "0.9 to the power of 8 is 0.43: where the policy does well, there is little left to compare.",
    state: { p: 0.9, G: 8 },
  },
  examples: {
    "p = 0.5, G = 4": { p: 0.5, G: 4 },
    "p = 0.5, G = 16": { p: 0.5, G: 16 },
    "hard question: p = 0.05, G = 16": { p: 0.05, G: 16 },
    "nearly solved: p = 0.95, G = 8": { p: 0.95, G: 8 },
  },
  controls: [
    range("p", "Probability p of a right answer", 0, 1, 0.01),
    range("G", "Members of a group G", 2, 64, 1, 0),
  ],
  draw({ p, G }) {
    const [noise, dead] = M.groupNoise(p, G), sizes = Array.from({ length: 63 }, (_, i) => i + 2);
    const what = `With p = ${fmt(p)} and G = ${G} the baseline is ${fmt(p)} ± ${fmt(noise, 3)}, and ${fmt(100 * dead, 1)}% of the groups are dead: ${dead > 0.999 ? "nothing will ever be learned" : `on average it takes ${fmt(1 / (1 - dead), 1)} groups to get one live one`}.`;
    const picture = (values, at, yLabel, className, top) => {
      const p = plot({ x: [0, 64], y: [0, top], label: `${yLabel}: ${fmt(at, 3)} with G = ${G}`, xLabel: "members of a group G", yLabel, width: 340, height: 230 });
      p.line(values, className);
      p.vertical(G, "grey");
      p.dot(G, at, className, 7);
      return p;
    };
    const of = (which) => sizes.map((size) => [size, M.groupNoise(p, size)[which]]);
    return [says(what), pictures(
      figure(picture(of(0), noise, "noise of the baseline", "blue", 0.4), "Standard deviation of the mean of a group: √(p (1 − p) / G)."),
      figure(picture(of(1), dead, "share of dead groups", "orange", 1), "All right or all wrong: pᴳ + (1 − p)ᴳ."))];
  },
});
