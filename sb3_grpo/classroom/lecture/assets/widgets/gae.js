// Share of the gradient's length that an estimate may be off, for the column of episodes
const GAE_TARGET = 0.3;
// Returns of this number of steps, then the critic: A3C(k) has k + 1
const K_STEPS = [1, 2, 3, 5];

// Bias and noise of one episode, in lengths of the true gradient: recorded by benchmarks/lecture_estimators.py
const withCritic = ([bias, none, slope, bend], error) => [bias * error, Math.sqrt(Math.max(none + slope * error + bend * error ** 2, 0))];
const gaeError = (lambda, error) => withCritic(DATA.estimators.gae[Math.round(100 * lambda)], error);
const stepError = (n, error) => withCritic(DATA.estimators.steps[n], error);

widget("gae", {
  state: { lambda: 0.95, error: 0, n: 16 },
  guess: {
    question: "This critic is exact. Suppose it is half wrong, with 16 episodes per update. Which λ gives the gradient with the smallest error?",
    options: ["0: trust the critic at once", "Something in between", "1: never trust it"],
    right: 1,
    state: { lambda: 0.8, error: 0.5, n: 16 },
    because: "At λ = 0 the critic’s full error enters the gradient, and no number of episodes removes it. At λ = 1 it is gone, replaced by the noise of ten steps.",
  },
  examples: {
    "critic half wrong": { lambda: 0.8, error: 0.5, n: 16 },
    "critic exact": { lambda: 0.95, error: 0, n: 16 },
    "critic knows nothing": { lambda: 0.9, error: 1, n: 16 },
    "PPO’s λ = 0.95": { lambda: 0.95, error: 0.5, n: 16 },
    "64 episodes": { lambda: 0.9, error: 0.5, n: 64 },
  },
  controls: [
    range("lambda", "λ", 0, 1, 0.01),
    range("error", "Error of the critic (0 exact, 1 knows nothing)", 0, 1.4, 0.05),
    range("n", "Episodes per update", 4, 128, 4, 0),
  ],
  draw({ lambda, error, n }) {
    const parts = ([bias, noise]) => ({ bias: bias ** 2, noise: noise ** 2 / n, sum: bias ** 2 + noise ** 2 / n });
    const at = Array.from({ length: 51 }, (_, i) => i / 50);
    const curve = at.map((x) => ({ x, ...parts(gaeError(x, error)) }));
    const best = curve.reduce((a, b) => (b.sum < a.sum ? b : a));
    const group = parts(DATA.estimators.group_leave_one_out), here = parts(gaeError(lambda, error));
    const off = (part) => `${fmt(100 * Math.sqrt(part.sum), 0)}%`;
    const what = `λ = ${fmt(lambda)}: the gradient is off by ${off(here)} of its length (bias ${fmt(100 * Math.sqrt(here.bias), 0)}%, noise ${fmt(100 * Math.sqrt(here.noise), 0)}%). The best is λ = ${fmt(best.x)} with ${off(best)}; groups of four without a critic: ${off(group)}.`;
    // Where the weights of GAE reach as far on average: 1 / (1 - λ) steps
    const steps = K_STEPS.map((n) => ({ n, x: 1 - 1 / n, ...parts(stepError(n, error)) }));
    const top = 1.08 * Math.max(...curve.map((each) => each.sum), ...steps.map((each) => each.sum), group.sum);
    const plane = plot({ x: [0, 1], y: [0, top], label: what, xLabel: "λ", yLabel: "squared error" });
    plane.line(curve.map((each) => [each.x, group.sum]), "pink dashed");
    plane.line(curve.map((each) => [each.x, each.bias]), "orange");
    plane.line(curve.map((each) => [each.x, each.noise]), "blue");
    plane.line(curve.map((each) => [each.x, each.sum]), "green");
    plane.text(0.99, group.sum + 0.02 * top, "groups of four", { class: "soft", "text-anchor": "end" });
    plane.vertical(best.x, "grey");
    for (const { n, x, sum } of steps) {
      plane.dot(x, sum, "grey", 5);
      plane.text(x + 0.02, sum + 0.02 * top, String(n), { class: "soft" });
    }
    plane.dot(lambda, here.sum, "green", 8);
    return pictures(
      figure(plane, "Squared error of the gradient, relative to its squared length. Orange: bias. Blue: noise. Green: their sum. Grey line: the best λ. Grey dots: returns of 1, 2, 3 and 5 steps, each at the λ that looks as far ahead on average, 1 − 1/k for k steps."),
      el("div", {}, says(what), estimatorTable(lambda, error, n)));
  },
});

function estimatorTable(lambda, error, n) {
  const rows = {
    "Monte Carlo": DATA.estimators.plain,
    "4 in a group, mean of all": DATA.estimators.group,
    "4 in a group, mean of others": DATA.estimators.group_leave_one_out,
    "Monte Carlo − critic (λ = 1)": gaeError(1, error),
    ...Object.fromEntries(K_STEPS.map((n) => [`${n} step${n > 1 ? "s" : ""}: A3C(${n - 1})${n > 1 ? "" : ", GAE(0)"}`, stepError(n, error)])),
    [`GAE(${fmt(lambda)})`]: gaeError(lambda, error),
  };
  const cells = ([bias, noise]) => [
    fmt(bias), fmt(noise / Math.sqrt(n)), fmt(Math.sqrt(bias ** 2 + noise ** 2 / n)),
    bias < GAE_TARGET ? fmt(Math.ceil(noise ** 2 / (GAE_TARGET ** 2 - bias ** 2) - 1e-9), 0) : "never",
  ];
  return table(["estimate", "bias", "noise", "error", "episodes for 0.3"], Object.entries(rows).map(([name, of]) => [name, ...cells(of)]));
}
