// Logits beyond are not shown
const REACH = 6;

// Expected return over the plane of both parameters, in shades: cells of one shade are one path
const REGION_SHADES = (() => {
  const size = 0.25, shades = 12, cells = Array.from({ length: shades }, () => []);
  for (let a = -REACH; a < REACH; a += size) {
    for (let b = -REACH; b < REACH; b += size) {
      cells[Math.min(Math.floor((M.twoStates(a + size / 2, b + size / 2)[0] / 18) * shades), shades - 1)].push([a, b]);
    }
  }
  return { size, cells };
})();

function shade({ root, X, Y }) {
  const { size, cells } = REGION_SHADES;
  cells.forEach((list, i) => root.prepend(svg("path", { class: "fill-grey", opacity: ((0.75 * i) / cells.length).toFixed(2),
    d: list.map(([a, b]) => `M${X(a).toFixed(1)} ${Y(b).toFixed(1)}H${X(a + size).toFixed(1)}V${Y(b + size).toFixed(1)}H${X(a).toFixed(1)}Z`).join("") })));
}

// Where a step of each direction reaches the KL: exactly, and to second order
function contours([a, b], delta) {
  const fisher = M.twoStates(a, b).slice(-2);
  const around = Array.from({ length: 73 }, (_, i) => [Math.cos((i * Math.PI) / 36), Math.sin((i * Math.PI) / 36)]);
  const exact = around.map(([x, y]) => {
    let low = 0, high = 40;
    for (let i = 0; i < 40; i++) {
      const r = (low + high) / 2;
      if (M.stepFacts(a, b, a + r * x, b + r * y)[0] < delta) low = r; else high = r;
    }
    return [a + low * x, b + low * y];
  });
  const quadratic = around.map(([x, y]) => {
    const r = Math.sqrt((2 * delta) / (fisher[0] * x * x + fisher[1] * y * y));
    return [a + r * x, b + r * y];
  });
  return { exact, quadratic };
}

const REGION_METHODS = {
  vanilla: { colour: "orange", step: ({ rate }) => ([a, b]) => M.vanillaStep(a, b, rate) },
  scaled: { colour: "blue", step: ({ delta }) => ([a, b]) => M.scaledStep(a, b, delta) },
  natural: { colour: "green", step: ({ delta }) => ([a, b]) => M.naturalStep(a, b, delta) },
  clipped: { colour: "pink", step: ({ rate, eps }) => ([a, b]) => M.clippedStep(a, b, rate, eps) },
};
const REGION_KEY = "Orange: vanilla. Blue: scaled to δ. Green: natural. Pink: clipped. ";

widget("trust-region", {
  state: { a: 0, b: -2, n: 1, delta: 0.02, rate: 1, eps: 0.2 },
  guess: {
    question: "Four learners begin with an even chance of leaving the first state. Which of them still stays there after 20 updates?",
    options: ["All of them", "The vanilla gradient only", "None of them"],
    right: 1,
    state: { a: 0, b: -2, n: 20, delta: 0.02, rate: 1, eps: 0.2 },
    because: "The first state is visited most, so the plain gradient pushes “stay” there first. Then the second state is hardly visited, the gradient nearly vanishes, and the steps become too short to get out. Scaled to the same KL in each update, they do get out, but a natural step, which weighs each direction by how much it changes the probabilities, is faster.",
  },
  examples: {
    "10 updates, η = 1": { a: 0, b: -2, n: 10, delta: 0.02, rate: 1, eps: 0.2 },
    "10 updates, η = 0.25: as short, at first": { a: 0, b: -2, n: 10, delta: 0.02, rate: 0.25, eps: 0.2 },
    "one update, η = 1": { a: 0, b: -2, n: 1, delta: 0.02, rate: 1, eps: 0.2 },
    "one update, η = 4: the surrogate errs": { a: 0.5, b: -1, n: 1, delta: 0.02, rate: 4, eps: 0.2 },
  },
  controls: [
    range("n", "Updates", 1, 40, 1, 0),
    range("delta", "δ: natural, scaled", 0.001, 0.1, 0.001, 3),
    range("rate", "η: vanilla and clipped", 0.05, 5, 0.05),
    range("eps", "ε: clip range", 0.05, 0.5, 0.05),
    range("a", "Start: first logit", -3, 3, 0.1, 1),
    range("b", "Start: second logit", -3, 3, 0.1, 1),
  ],
  draw(state) {
    const start = [state.a, state.b];
    const runs = Object.entries(REGION_METHODS).map(([name, { colour, step }]) => {
      const path = [start], next = step(state);
      for (let i = 0; i < state.n; i++) path.push(next(path[i]));
      return { name, colour, path, first: M.stepFacts(...start, ...path[1]), end: M.twoStates(...path[state.n])[0] };
    });
    const what = `The return is ${fmt(M.twoStates(...start)[0])} at first. After ${state.n} update${state.n > 1 ? "s" : ""}: ${runs.map(({ name, end }) => `${name} ${fmt(end)}`).join(", ")}. Always staying in the first state gives 10, moving to the second and staying there 18.`;
    return [
      says(what),
      pictures(regionPlane(runs, what), regionFirstStep(start, runs, state)),
      regionTable(start, runs, state.n),
    ];
  },
});

function regionPlane(runs, label) {
  const plane = plot({ x: [-REACH, REACH], y: [-REACH, REACH], height: 400, label, xLabel: "logit of staying, first state", yLabel: "logit of staying, second state" });
  shade(plane);
  for (const { path, colour } of runs) {
    plane.line(path, colour);
    for (const point of path) plane.dot(...point, colour, point === path.at(-1) ? 8 : 3);
  }
  return figure(plane, REGION_KEY, "A dot for each update. Shade: expected return, the stronger the higher. Logits are kept within ±6.");
}

function regionFirstStep([a, b], runs, { delta }) {
  const { exact, quadratic } = contours([a, b], delta);
  const ends = runs.map(({ path }) => path[1]);
  const span = (axis) => {
    const values = [...exact, ...quadratic, ...ends].map((point) => point[axis]);
    const low = Math.min(...values), high = Math.max(...values), margin = 0.06 * (high - low);
    return [low - margin, high + margin];
  };
  const label = `The first step. ${runs.map(({ name, first }) => `${name}: mean KL ${fmt(first[0], 3)}`).join(", ")}; allowed ${fmt(delta, 3)}.`;
  const plane = plot({ x: span(0), y: span(1), height: 400, label, xLabel: "logit of staying, first state", yLabel: "logit of staying, second state" });
  plane.line(exact, "grey");
  plane.line(quadratic, "grey dashed");
  for (const { path, colour } of runs) {
    plane.line(path.slice(0, 2), colour);
    plane.dot(...path[1], colour, 7);
  }
  plane.dot(a, b, "grey", 5);
  return figure(plane, REGION_KEY, `The first step. Grey: all policies at a mean KL of ${fmt(delta, 3)}; dashed: the second-order approximation, an ellipse with the axes of the Fisher matrix.`);
}

function regionTable(start, runs, n) {
  const percent = (logit) => `${fmt(100 / (1 + Math.exp(-logit)), 0)}%`;
  const heads = ["first step", "stays in 1st", "stays in 2nd", "mean KL", "surrogate predicts", "guaranteed", "return", `after ${n} update${n > 1 ? "s" : ""}`];
  const step = (name, [a, b], ...cells) => [name, percent(a), percent(b), ...cells];
  return table(heads, [step("before", start, "", "", "", fmt(M.twoStates(...start)[0]), ""),
    ...runs.map(({ name, path, first: [kl, , expected, promised, value], end }) => step(name, path[1], fmt(kl, 3), fmt(expected), `≥ ${fmt(promised, 1)}`, fmt(value), fmt(end)))]);
}
