// Measured learning curves of any combination of DAPO's changes, with GRPO and DAPO
const SWITCHES = ["clip", "dynamic", "step", "overlong", "kl"];
const nameOfArm = (state) => SWITCHES.map((key) => state[key]).join("");
const onNames = (recorded, arm) => recorded.switches.filter((_, i) => arm[i] === "1");
const combined = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`);

function armTitle(recorded, arm) {
  const on = onNames(recorded, arm), off = recorded.switches.filter((name) => !on.includes(name));
  if (!on.length) return "GRPO";
  if (!off.length) return "DAPO";
  return off.length === 1 ? `DAPO less ${off[0]}` : `GRPO with ${combined(on)}`;
}

const intervalText = ([value, low, high], digits) => `${fmt(value, digits)} (${fmt(low, digits)} to ${fmt(high, digits)})`;
// Digits of means over the training
const meanDigits = (recorded) => (recorded.digits > 1 ? 2 : 0);

function switchesSay(recorded, arm) {
  const digits = meanDigits(recorded), of = (name) => intervalText(recorded.arms[name].mean, digits);
  const ends = `GRPO ${of("00000")}, DAPO ${of("11111")}`;
  const what = `${recorded.score}, mean over ${recorded.steps.toLocaleString("en")} ${recorded.unit}`;
  if (!recorded.arms[arm]) return `${armTitle(recorded, arm)} was not measured on this task. For comparison: ${ends} (${what}).`;
  if (arm === "00000" || arm === "11111") return `${recorded.title}: ${ends} (${what}).`;
  const worth = onNames(recorded, arm).length === 1 && recorded.arms["00000"].worth[arm.indexOf("1")];
  const added = worth ? ` Added to GRPO, on the same seeds: ${intervalText(worth, digits)}.` : "";
  return `${recorded.title}, ${armTitle(recorded, arm)}: ${of(arm)} (${what}). ${ends}.${added}`;
}

function switchesPicture(recorded, arm, label) {
  const [low, high] = recorded.range, points = recorded.arms["00000"].curve[0].length - 1;
  const x = (i) => (recorded.steps / 1000) * (i / points);
  const p = plot({ x: [0, recorded.steps / 1000], y: [low, high], label, xLabel: `thousand ${recorded.unit}`, yLabel: recorded.score });
  const curves = [["00000", "grey"], ["11111", "blue"]];
  if (recorded.arms[arm] && !curves.some(([name]) => name === arm)) curves.push([arm, "orange"]);
  for (const [name, color] of curves) p.band(recorded.arms[name].curve[0].map((_, i) => [x(i), recorded.arms[name].curve[1][i], recorded.arms[name].curve[2][i]]), color);
  for (const [name, color] of curves) p.line(recorded.arms[name].curve[0].map((value, i) => [x(i), value]), color);
  return p;
}

// What each switch is worth where the others are as they are
function worthRows(recorded, state) {
  const digits = meanDigits(recorded);
  return SWITCHES.map((key, i) => {
    const without = recorded.arms[nameOfArm({ ...state, [key]: 0 })], worth = without && without.worth[i];
    const text = worth ? `${worth[0] > 0 ? "+" : ""}${intervalText(worth, digits)}` : "not measured";
    return [recorded.switches[i], state[key] ? "on" : "off", text];
  });
}

widget("dapo-switches", {
  state: { task: "control", clip: 1, dynamic: 0, step: 1, overlong: 1, kl: 1 },
  guess: {
    question: "In DAPO’s paper, dynamic sampling brought the most: 8 of 20 points. On Acrobot every episode that fails takes 500 steps. What does dynamic sampling bring there?",
    options: ["The most again", "No visible difference", "It hurts"],
    right: 1,
    state: { task: "control", clip: 0, dynamic: 1, step: 0, overlong: 0, kl: 0 },
    because: `On average over the other changes it is worth ${intervalText(DATA.switches.control.main[1], 0)} points of return: some seeds gain, others lose. Early in training, most groups are dead, and each dropped group has cost 2,000 steps.`,
  },
  examples: {
    "GRPO": { task: "control", clip: 0, dynamic: 0, step: 0, overlong: 0, kl: 0 },
    "DAPO": { task: "control", clip: 1, dynamic: 1, step: 1, overlong: 1, kl: 1 },
    "dynamic sampling alone": { task: "control", clip: 0, dynamic: 1, step: 0, overlong: 0, kl: 0 },
    "DAPO less dynamic sampling": { task: "control", clip: 1, dynamic: 0, step: 1, overlong: 1, kl: 1 },
    "sums: GRPO with no KL penalty": { task: "ladder", clip: 0, dynamic: 0, step: 0, overlong: 0, kl: 1 },
    "sums: DAPO": { task: "ladder", clip: 1, dynamic: 1, step: 1, overlong: 1, kl: 1 },
  },
  controls: [
    choice("task", "Task", { control: "Acrobot (control)", text: "Sums (text)", ladder: "Sums, longer" }),
    tick("clip", "Clip-higher"),
    tick("dynamic", "Dynamic sampling"),
    tick("step", "Step-level loss"),
    tick("overlong", "Overlong filter, penalty"),
    tick("kl", "No KL penalty"),
  ],
  draw(state) {
    const recorded = DATA.switches[state.task], arm = nameOfArm(state), what = switchesSay(recorded, arm);
    return [
      says(what),
      pictures(
        figure(switchesPicture(recorded, arm, what), key("grey"), "GRPO. ", key("blue"), "DAPO. ", key("orange"), `The changes ticked. ${recorded.seeds} seeds: interquartile mean and 95% interval.`),
        el("div", {}, table(["change", "now", "worth"], worthRows(recorded, state), `What each change is worth, with the others as set: ${recorded.score}, mean over training`),
          note("Each change is compared on the same seeds, so these intervals are narrower than those of the curves."))),
    ];
  },
});
