widget("clip", {
  state: { r: 1, A: 1, low: 0.2, high: 0.2 },
  guess: {
    question: "A good action (Â = 1) has become 1.35 times as probable as it was. How much of its gradient is left?",
    options: ["All of it", "1.2 of 1.35", "Nothing"],
    right: 2,
    state: { r: 1.35, A: 1, low: 0.2, high: 0.2 },
    because: "The action was good, so beyond 1 + ε the objective is flat: there is nothing more to gain from this sample. The value stays at 1.2.",
  },
  examples: {
    "first step: r = 1": { r: 1, A: 1, low: 0.2, high: 0.2 },
    "good, r = 1.35": { r: 1.35, A: 1, low: 0.2, high: 0.2 },
    "good, r = 1.35, clip-higher": { r: 1.35, A: 1, low: 0.2, high: 0.28 },
    "bad, r = 0.7": { r: 0.7, A: -2.1, low: 0.2, high: 0.2 },
    "bad, r = 1.5": { r: 1.5, A: -1, low: 0.2, high: 0.2 },
    "good, r = 0.6": { r: 0.6, A: 1, low: 0.2, high: 0.2 },
  },
  controls: [
    range("r", "Probability ratio r", 0, 2, 0.01),
    range("A", "Advantage Â", -3, 3, 0.1),
    range("low", "ε low", 0, 0.6, 0.01),
    range("high", "ε high", 0, 0.6, 0.01),
  ],
  draw({ r, A, low, high }) {
    const [value, slope] = M.clip(r, A, low, high);
    const cases = {
      "Â > 0, r ≥ 1": [A > 0 && r >= 1, `encouraged, until 1 + ε = ${fmt(1 + high)}`],
      "Â > 0, r < 1": [A > 0 && r < 1, "the wrong way: corrected without limit"],
      "Â < 0, r ≤ 1": [A < 0 && r <= 1, `discouraged, until 1 − ε = ${fmt(1 - low)}`],
      "Â < 0, r > 1": [A < 0 && r > 1, "the wrong way: corrected without limit"],
    };
    const what = `r = ${fmt(r)} and Â = ${fmt(A)}: the objective is ${fmt(value)}, its gradient ${slope === 0 ? "zero" : `whole, ${fmt(slope)}`}.`;
    const reach = Math.max(Math.abs(A) * 2, 1);
    const p = plot({ x: [0, 2], y: [-reach, reach], label: what, xLabel: "probability ratio r", yLabel: "objective" });
    const at = Array.from({ length: 201 }, (_, i) => i / 100);
    p.line(at.map((x) => [x, x * A]), "grey dashed");
    p.vertical(1 - low, "grey"); p.vertical(1 + high, "grey");
    p.line(at.map((x) => [x, M.clip(x, A, low, high)[0]]), "blue");
    // Where an ascent would push the ratio
    if (slope !== 0) {
      const push = Math.sign(slope), x = p.X(r) + 12 * push, y = p.Y(value);
      p.root.append(svg("path", { class: "line green", d: `M${x} ${y}h${26 * push}m${-7 * push} -6l${7 * push} 6l${-7 * push} 6` }));
    }
    p.dot(r, value, slope === 0 ? "orange" : "green", 8);
    return pictures(
      figure(p, "Blue: the objective. Dashed: without the clip, and the bounds 1 − ε and 1 + ε. Arrow: where the gradient pushes the ratio."),
      el("div", {}, says(what), table(null, Object.entries(cases).map(([name, [here, then]]) => row([el("span", { class: "narrow" }, here ? "▸ " : "", name), then], { class: here ? "" : "dead" })))));
  },
});
