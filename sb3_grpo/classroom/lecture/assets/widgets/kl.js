const KL_ACTIONS = ["A", "B", "C"], KL_NAMES = ["k1", "k2", "k3"];
const near = (one, other) => one.every((value, i) => Math.abs(value - other[i]) < 1e-9);

// Whose gradient it is
function whoseGradient(gradient, forward, backward) {
  if (near(gradient, forward)) return "yes";
  if (near(gradient, [0, 0, 0])) return "zero";
  return near(gradient, backward) ? "KL(ref ‖ policy)" : "no";
}
const PLAIN_SAYS = {
  yes: "as it stands, it has that gradient too, because the policy itself acted",
  zero: "as it stands, its gradient is zero",
  "KL(ref ‖ policy)": "as it stands, it has that of KL(reference ‖ policy)",
  no: "as it stands, it has the gradient of neither divergence",
};

// Bars for three actions, of several kinds side by side
function actionBars(series, [low, high], label) {
  const width = 340, height = 200, left = 42, bottom = 26, each = (width - left) / KL_ACTIONS.length;
  const Y = (value) => 8 + ((high - value) / (high - low)) * (height - bottom - 8);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const at of ticks([low, high])) {
    root.append(svg("path", { class: at === 0 ? "axis" : "grid", d: `M${left} ${Y(at)}H${width}` }));
    root.append(svg("text", { x: left - 6, y: Y(at) + 4, "text-anchor": "end", class: "soft" }, String(at).replace("-", "−")));
  }
  const wide = (each * 0.8) / series.length;
  KL_ACTIONS.forEach((name, action) => {
    const begin = left + action * each;
    series.forEach(([className, values], which) => root.append(svg("rect", { x: begin + each * 0.1 + which * wide, width: wide * 0.9, y: Y(Math.max(values[action], 0)), height: Math.max(Math.abs(Y(values[action]) - Y(0)), 1), class: `fill-${className}` })));
    root.append(svg("text", { x: begin + each / 2, y: height - 6, "text-anchor": "middle" }, `action ${name}`));
  });
  return root;
}

function klTables(values, gradients, forward, backward) {
  const loss = (name, gradient) => [name, ...gradient.map((value) => fmt(value, 3)), whoseGradient(gradient, forward, backward)];
  return pictures(
    table(["As a value", ...KL_ACTIONS, "mean", "noise"], KL_NAMES.map((name, i) => [name, ...values.slice(1 + 5 * i, 6 + 5 * i).map((value) => fmt(value))])),
    table(["As a loss", ...KL_ACTIONS, "of the KL?"], [
      loss("exact", forward), ...KL_NAMES.map((name, i) => loss(`r ${name}`, gradients[2 + i])), ...KL_NAMES.map((name, i) => loss(name, gradients[5 + i]))]));
}

widget("kl", {
  state: { a: 60, b: 39, c: 1, ra: 40, rb: 30, rc: 30, stale: 0, show: "k3" },
  guess: {
    question: "The actions come from an earlier policy. Which estimate, put into the loss as it stands, still has the gradient of KL(policy ‖ reference)?",
    options: ["k2", "k3", "None of them"],
    right: 2,
    state: { a: 60, b: 39, c: 1, ra: 40, rb: 30, rc: 30, stale: 0.4, show: "k2" },
    because: "k2 has it only while the policy itself acts. With an earlier policy each sample needs the ratio, and then all three have it.",
  },
  examples: {
    "the policy has nearly lost C": { a: 60, b: 39, c: 1, ra: 40, rb: 30, rc: 30, stale: 0, show: "k3" },
    "k1 as it stands": { a: 60, b: 39, c: 1, ra: 40, rb: 30, rc: 30, stale: 0, show: "k1" },
    "k2 as it stands": { a: 60, b: 39, c: 1, ra: 40, rb: 30, rc: 30, stale: 0, show: "k2" },
    "k2, an earlier policy acted": { a: 60, b: 39, c: 1, ra: 40, rb: 30, rc: 30, stale: 0.4, show: "k2" },
    "policy = reference": { a: 40, b: 30, c: 30, ra: 40, rb: 30, rc: 30, stale: 0, show: "k3" },
  },
  controls: [
    choice("show", "Estimate", { k1: "k1", k2: "k2", k3: "k3" }),
    ...["a", "b", "c"].map((key, i) => range(key, `Policy: ${KL_ACTIONS[i]}`, 1, 100, 1, 0)),
    ...["ra", "rb", "rc"].map((key, i) => range(key, `Reference: ${KL_ACTIONS[i]}`, 1, 100, 1, 0)),
    range("stale", "Acted: 0 policy, 1 ref", 0, 1, 0.1, 1),
  ],
  draw({ a, b, c, ra, rb, rc, stale, show }) {
    const weights = [a, b, c, ra, rb, rc];
    const values = M.klValues(...weights), flat = M.klGradients(stale, ...weights);
    const gradients = Array.from({ length: 8 }, (_, i) => flat.slice(3 * i, 3 * i + 3)), [forward, backward] = gradients;
    const which = KL_NAMES.indexOf(show), weighted = gradients[2 + which], plain = gradients[5 + which];
    const p = [a, b, c].map((weight) => weight / (a + b + c)), ref = [ra, rb, rc].map((weight) => weight / (ra + rb + rc));
    const name = KL_NAMES[which], agree = near(forward, [0, 0, 0]);
    const whose = agree ? "Policy and reference agree: no gradient." : `As a loss with the ratio, ${name} has the gradient of the KL; ${PLAIN_SAYS[whoseGradient(plain, forward, backward)]}.`;
    const what = `KL(policy ‖ reference) = ${fmt(values[0], 3)} nats. ${name} estimates ${fmt(values[4 + 5 * which], 3)} on average. ${whose}`;
    const reach = Math.max(...[forward, weighted, plain].flat().map(Math.abs), 0.05) * 1.1;
    const push = (gradient) => gradient.map((value) => -value), words = (numbers) => numbers.map((value) => fmt(value)).join(", ");
    return [
      says(what),
      pictures(
        figure(actionBars([["blue", p], ["grey", ref]], [0, 1], `Policy ${words(p)}; reference ${words(ref)}`), "Probabilities. Blue: the policy. Grey: the reference."),
        figure(actionBars([["blue", push(forward)], ["green", push(weighted)], ["orange", push(plain)]], [-reach, reach], `Push on the logits: exact ${words(push(forward))}; ${name} with the ratio ${words(push(weighted))}; as it stands ${words(push(plain))}`), `Where a gradient step pushes the logits. Blue: exact. Green: ${name} with the ratio. Orange: ${name} as it stands.`)),
      klTables(values, gradients, forward, backward),
      note("Mean and noise (standard deviation) are over actions of the policy. Gradients are with respect to the logits of A, B and C, in expectation over the actions of the acting policy; r is the ratio of the policy to the acting one."),
    ];
  },
});
