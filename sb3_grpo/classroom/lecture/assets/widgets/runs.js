// One real training for each chapter, on the same task: what benchmarks/lecture_runs.py recorded.
const RUN_NAMES = {
  vpg: "policy gradient", trpo: "TRPO", ppo: "PPO", grpo: "GRPO (paper)", dapo: "DAPO (paper)", prorl: "ProRL",
  grpo_default: "GRPO, package defaults", dapo_default: "DAPO, package defaults",
};
const RUN_STEPS = DATA.runs.steps.map((steps) => steps / 1000);
const runSteps = { x: [0, RUN_STEPS.at(-1)], xLabel: "steps, in thousands" };
const runLast = ({ iqm: [value, low, high] }) => `${fmt(value.at(-1), 0)} (${fmt(low.at(-1), 0)} to ${fmt(high.at(-1), 0)})`;
const program = (lines) => el("pre", { tabindex: 0, role: "region", "aria-label": "The program" }, el("code", {}, lines));

// What is drawn next to the learning curve: a column of the updates, by default of the same run, and what it is
const RUN_MEASURES = {
  kl: { yLabel: "KL, nats", says: "How far each update moved the policy: mean KL(old ‖ new) over the update’s states." },
  clipped: { yLabel: "share", says: "Share of the samples that the clip cut off, averaged over the passes of an update." },
  dead: { yLabel: "share", y: [0, 1], says: "Share of dead groups among those drawn for an update." },
  entropy: { yLabel: "entropy", y: [0, 0.7], says: "Entropy of the policy: 0.69 is a coin toss, 0 always the same action." },
  kl_ref: { yLabel: "KL, nats", byUpdate: true, says: "KL(policy ‖ reference) after each update, on its states; 0 where the policy has just become the reference." },
};

function runCurve(name, others, seed) {
  const { curves, iqm: [value, low, high] } = DATA.runs.runs[name];
  const p = plot({ ...runSteps, y: [0, 500], label: `${RUN_NAMES[name]}: ${runLast(DATA.runs.runs[name])} at the end.`, yLabel: "return" });
  const line = (values) => RUN_STEPS.map((x, i) => [x, values[i]]);
  p.band(RUN_STEPS.map((x, i) => [x, low[i], high[i]]), "blue");
  others.forEach((other, i) => p.line(line(DATA.runs.runs[other].iqm[0]), i ? "grey dashed" : "grey"));
  curves.forEach((curve, i) => p.line(line(curve), i + 1 === seed ? "pink" : "blue thin"));
  p.line(line(value), "blue");
  const grey = others.map((other, i) => ` Grey${i ? ", dashed" : ""}: ${RUN_NAMES[other]}.`).join("");
  return figure(p, `Return of 20 episodes with sampled actions. Thick: interquartile mean of five seeds, with its 95% interval; thin: each seed.${grey}`);
}

function runMeasure(own, [key, name = own], seed, bound, height) {
  const { updates } = DATA.runs.runs[name], { yLabel, y, byUpdate } = RUN_MEASURES[key];
  const what = `${name === own ? "" : `${RUN_NAMES[name]}. `}${RUN_MEASURES[key].says}`;
  const top = y || [0, 1.05 * Math.max(...updates.flatMap((update) => update[key]))];
  const last = updates.map((update) => update[key].at(-1));
  const end = byUpdate ? Math.max(...updates.map(({ steps }) => steps.length)) : RUN_STEPS.at(-1);
  const p = plot({ x: [0, end], xLabel: byUpdate ? "updates" : runSteps.xLabel, y: top, height, label: `${what} At the end: ${last.map((value) => fmt(value, 3)).join(", ")}.`, yLabel });
  // Nothing is known of groups where none has ended
  const line = (update) => update.steps.map((steps, i) => [byUpdate ? i + 1 : steps / 1000, update[key][i]]).filter(([, value]) => value !== null);
  updates.forEach((update, i) => i + 1 !== seed && p.line(line(update), "blue thin"));
  if (seed) p.line(line(updates[seed - 1]), "pink");
  if (bound) p.line([[0, bound], [end, bound]], "orange dashed");
  return figure(p, `${what}${bound ? ` Orange: the bound, ${bound}.` : ""} One line per seed${seed ? `, pink: seed ${seed}` : ""}.`);
}

function runWidget(name, { others, measures, bound, question, first = 0 }) {
  widget(`run-${name}`, {
    state: { seed: first },
    guess: question,
    controls: [range("seed", "Show one seed (0: none)", 0, DATA.runs.made.seeds.length, 1, 0)],
    draw({ seed }) {
      const run = DATA.runs.runs[name], all = run.curves.map((curve) => curve.at(-1));
      const one = seed ? ` Seed ${seed} ends at ${fmt(all[seed - 1], 0)}.` : ` Single seeds: ${[...new Set([Math.min(...all), Math.max(...all)].map((value) => fmt(value, 0)))].join(" to ")}.`;
      return [
        says(`CartPole, ${RUN_STEPS.at(-1)},000 steps. Interquartile mean of five seeds at the end: ${runLast(run)}.${one}`),
        pictures(
          el("div", {}, runCurve(name, others, seed), program(run.program)),
          el("div", {}, measures.map((measure) => runMeasure(name, measure, seed, bound, measures.length > 1 ? 180 : 300)), madeBy(DATA.runs.made))),
      ];
    },
  });
}

// All values of a column, in their order
const sortedOf = (name, key) => DATA.runs.runs[name].updates.flatMap((update) => update[key]).sort((a, b) => a - b);
const largestOf = (name, key) => sortedOf(name, key).at(-1);
const medianOf = (name, key) => sortedOf(name, key).at(sortedOf(name, key).length / 2);
runWidget("vpg", {
  others: [], measures: [["kl"], ["entropy"]],
  question: {
    question: "Nothing limits how far an update may go. TRPO allows 0.01 nats. How far does the largest update move the policy?",
    options: ["0.005", "0.02", "More than 0.05"],
    right: 2,
    because: `Up to ${fmt(largestOf("vpg", "kl"))} nats, in a single optimizer step. The longest steps come before the curve has settled.`,
  },
});
runWidget("trpo", {
  others: ["vpg"], measures: [["kl"]], bound: 0.01,
  question: {
    question: "0.01 nats are allowed. How much of this does a typical update use?",
    options: ["A tenth", "Three quarters", "All of it"],
    right: 1,
    because: `The median is ${fmt(medianOf("trpo", "kl"), 4)} nats. The natural step would use all of it if the KL were exactly a bowl. It is not, so the line search shortens the step until the true KL is within the limit.`,
  },
});
runWidget("ppo", {
  others: ["trpo"], measures: [["clipped"], ["kl"]],
  question: {
    question: "PPO clips the ratio at 0.8 and 1.2. Does that keep its updates within TRPO’s 0.01 nats?",
    options: ["Yes, all of them", "Most of them, but not all"],
    right: 1,
    because: `The median is ${fmt(medianOf("ppo", "kl"), 3)} nats, the largest ${fmt(largestOf("ppo", "kl"))}. Samples that are cut off no longer push, but others, which share the parameters, still do.`,
  },
});
runWidget("grpo", {
  others: ["ppo", "grpo_default"], measures: [["kl_ref"], ["dead", "grpo_default"]],
  question: {
    question: "How many groups are dead when the task is solved?",
    options: ["None: they begin in different states", "Nearly all"],
    right: 1,
    because: "Groups begin in different states, but the members of a group begin in the same one, and all of them last 500 steps. There is nothing left to compare, and the policy stops changing.",
  },
});
runWidget("dapo", {
  others: ["grpo", "dapo_default"], measures: [["entropy"], ["dead", "dapo_default"]],
  question: {
    question: "Dynamic sampling replaces dead groups. When does that cost most on this task?",
    options: ["At the beginning", "At the end"],
    right: 1,
    because: "At the beginning, episodes last 10 to 50 steps, and those of a group are hardly ever all equally long. At the end, all last 500: each update draws groups in vain, up to the limit of rounds.",
  },
});
runWidget("prorl", {
  others: ["dapo"], measures: [["kl_ref"]], first: 2,
  question: {
    question: "After a reset the policy is its own reference. What is the KL penalty then?",
    options: ["As before", "Zero"],
    right: 1,
    because: "It is the distance from the reference, which is now the policy itself. It pushes again only once the policy has moved, and the more the policy has learned since, the harder.",
  },
});

// All of them in one picture
const RUN_COLOURS = { vpg: "grey", trpo: "pink", ppo: "blue", grpo: "orange", dapo: "green", prorl: "green dashed" };
function runTable() {
  const mean = ({ iqm: [value] }) => meanOf(value);
  const updates = ({ updates }) => [...updates.map(({ steps }) => steps.length)].sort((a, b) => a - b)[Math.floor(updates.length / 2)];
  return table(["", "updates", "mean over training", "at the end"], Object.entries(DATA.runs.runs).map(([name, run]) =>
    [RUN_NAMES[name], updates(run), fmt(mean(run), 0), el("span", { class: "narrow" }, runLast(run))]));
}

widget("run-all", {
  state: { bands: 0 },
  controls: [tick("bands", "Show the intervals")],
  draw({ bands }) {
    const ends = Object.keys(RUN_COLOURS).map((name) => `${RUN_NAMES[name]} ${runLast(DATA.runs.runs[name])}`).join(", ");
    const p = plot({ ...runSteps, y: [0, 500], label: `Interquartile mean at the end: ${ends}.`, yLabel: "return", height: 360 });
    for (const [name, colour] of Object.entries(RUN_COLOURS)) {
      const [value, low, high] = DATA.runs.runs[name].iqm;
      if (bands) p.band(RUN_STEPS.map((x, i) => [x, low[i], high[i]]), colour.split(" ")[0]);
      p.line(RUN_STEPS.map((x, i) => [x, value[i]]), colour);
    }
    return [
      pictures(figure(p, "Interquartile means of five seeds. Grey: policy gradient. Pink: TRPO. Blue: PPO. Orange: GRPO. Green: DAPO, dashed: ProRL."), runTable()),
      madeBy(DATA.runs.made),
    ];
  },
});
