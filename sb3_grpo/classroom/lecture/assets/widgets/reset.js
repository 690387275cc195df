widget("reset", {
  state: { p: 0.1, beta: 0.5, resets: 3 },
  guess: {
    question: "With β = 0.1 instead of 0.5, how many references does it take to be right with probability 0.99?",
    options: ["1", "4", "20"],
    right: 0,
    state: { p: 0.1, beta: 0.1, resets: 0 },
    because: "Each reference multiplies the odds by e to the power of 1/β, here by 22,026: one is enough. But so weak a penalty no longer holds the policy near its reference.",
  },
  examples: {
    "β = 0.5": { p: 0.1, beta: 0.5, resets: 3 },
    "β = 1": { p: 0.1, beta: 1, resets: 3 },
    "β = 0.1": { p: 0.1, beta: 0.1, resets: 3 },
    "never reset": { p: 0.1, beta: 0.5, resets: 0 },
  },
  controls: [
    range("p", "Initial probability of a right answer", 0.01, 0.99, 0.01),
    range("beta", "KL coefficient β", 0.1, 2, 0.05),
    range("resets", "Resets of the reference", 0, 8, 1, 0),
  ],
  draw({ p, beta, resets }) {
    const stops = Array.from({ length: resets + 1 }, (_, n) => M.reset(p, beta, n)), [end, kl] = stops.at(-1);
    const what = `With the first reference the best policy is right with probability ${fmt(stops[0][0])}. ${resets === 0 ? "There it stays." : `After ${resets} reset${resets === 1 ? "" : "s"} it is ${fmt(end, 3)}, and ${fmt(kl, 3)} nats from its last reference.`}`;
    const drawing = plot({ x: [0, 9], y: [0, 1], label: what, xLabel: "references so far", yLabel: "probability of a right answer", height: 260 });
    const levels = [p, ...stops.map(([each]) => each)];
    drawing.line([[0, stops[0][0]], [9, stops[0][0]]], "grey dashed");
    drawing.line(levels.map((level, n) => [n, level]), "blue");
    levels.forEach((level, n) => drawing.dot(n, level, n === 0 ? "grey" : "blue", 6));
    return pictures(figure(drawing, "Each dot: the best policy with that reference, which then becomes the next. Dashed: the limit without resets."), says(what));
  },
});
