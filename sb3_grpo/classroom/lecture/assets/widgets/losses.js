const LOSS_LINES = [["clip", "blue"], ["CISPO", "orange"], ["DPPO", "green"], ["no bound", "grey dashed"], ["SAPO", "pink"]];

widget("losses", {
  state: { r: 1.5, A: 1, low: 0.2, high: 0.28, old: 0.1 },
  guess: {
    question: "A token had the probability 0.01 and is good. It is now three times as probable. Which loss still pushes it up as hard as if nothing bounded it?",
    options: ["PPO’s clip", "DPPO", "None"],
    right: 1,
    state: { r: 3, A: 1, low: 0.2, high: 0.28, old: 0.01 },
    because: "Its probability has risen by 0.02 only, far from DPPO’s bound. The clip looks at the ratio, and has cut it off at 1.28. CISPO goes on, with its weight bounded.",
  },
  examples: {
    "a rare good token": { r: 3, A: 1, low: 0.2, high: 0.28, old: 0.01 },
    "a frequent good token": { r: 1.05, A: 1, low: 0.2, high: 0.28, old: 0.9 },
    "a bad action, half as probable": { r: 0.5, A: -1, low: 0.2, high: 0.28, old: 0.5 },
    "a bad action that rose": { r: 2.5, A: -1, low: 0.2, high: 0.28, old: 0.2 },
  },
  controls: [
    range("r", "Probability ratio r", 0, 4, 0.01),
    range("A", "Advantage Â", -2, 2, 0.1),
    range("low", "ε low", 0, 1, 0.01),
    range("high", "ε high", 0, 4, 0.01),
    range("old", "Its probability before", 0.01, 1, 0.01),
  ],
  draw({ r, A, low, high, old }) {
    // A probability is at most 1
    const most = Math.min(4, 1 / old), here = Math.min(r, most), at = M.pushes(here, A, low, high, old);
    const reach = Math.max(4 * Math.abs(A), 1);
    const what = `r = ${fmt(here)}, Â = ${fmt(A)}: ${LOSS_LINES.map(([name], i) => `${name} ${fmt(at[i])}`).join(", ")}.`;
    const p = plot({ x: [0, 4], y: [-reach, reach], label: what, xLabel: "probability ratio r", yLabel: "push on log π" });
    const points = Array.from({ length: 401 }, (_, i) => (i / 400) * most);
    LOSS_LINES.forEach(([, colour], i) => p.line(points.map((x) => [x, M.pushes(x, A, low, high, old)[i]]), colour));
    LOSS_LINES.forEach(([, colour], i) => p.dot(here, at[i], colour.split(" ")[0], 6));
    return pictures(
      figure(p, "Blue: clip. Orange: CISPO. Green: DPPO. Pink: SAPO. Dashed: without a bound. Above 0, the action becomes more probable."),
      el("div", {}, says(what), table(["loss", "push"], LOSS_LINES.map(([name], i) => row([name, fmt(at[i])], { class: at[i] === 0 ? "dead" : "" })))));
  },
});
