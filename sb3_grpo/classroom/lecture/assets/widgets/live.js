// PPO, GRPO and DAPO learn CartPole side by side, three seeds each, between the frames of the page. The first of them drive carts.
const LIVE_COLOURS = { PPO: "blue", GRPO: "orange", DAPO: "green" };
const LIVE_SLICE = 12; // ms of a frame
const LIVE_REDRAW = 200; // ms
// What the points of a curve are, after the steps
const LIVE_MEASURES = { return: 1, entropy: 2, dead: 3 };
let live = null;

// The settings of a run in the form that training takes
const liveSettings = ({ lr, clip, kind, groupSize }) => ({ lr: +lr, clip: !!clip, kind, groupSize: +groupSize });
const liveKey = (state) => JSON.stringify([state.seed, liveSettings(state)]);
const liveRuns = (state, given) => Object.keys(LIVE_ALGORITHMS).flatMap((name) => [0, 1, 2].map((i) => makeRun(name, state.seed + i, { ...liveSettings(state), ...given })));

// A run is asked for its next slice where it is least far
function liveAdvance(runs, milliseconds) {
  const end = performance.now() + milliseconds;
  while (performance.now() < end) {
    const open = runs.filter((run) => !run.done);
    if (!open.length) return;
    open.reduce((least, run) => (run.steps < least.steps ? run : least)).slices.next();
  }
}

// The value of a measure after a number of steps: that of the last point before them
function liveAt(points, steps, measure) {
  const before = points.filter((point) => point[0] <= steps).at(-1);
  return before ? before[measure] : NaN;
}
// Mean over the seeds, as far as all of them have come
function liveMean(curves, measure) {
  const reached = liveSteps(curves);
  const at = Array.from({ length: 61 }, (_, i) => (i * TRAINING.budget) / 60).filter((steps) => steps <= reached);
  return at.map((steps) => [steps / 1000, meanOf(curves.map((points) => liveAt(points, steps, measure)))]).filter(([, value]) => Number.isFinite(value));
}
// The last update may end after the budget: what counts is what was there within it
const liveLast = (curves, measure) => meanOf(curves.map((points) => liveAt(points, TRAINING.budget, measure)));
const liveSteps = (curves) => Math.min(TRAINING.budget, ...curves.map((points) => (points.length ? points.at(-1)[0] : 0)));

function livePlot(curves, measure, options) {
  const p = plot({ x: [0, TRAINING.budget / 1000], xLabel: "steps, in thousands", ...options });
  for (const [name, runs] of Object.entries(curves)) {
    const inside = (points) => points.filter((point) => point[0] <= TRAINING.budget && point[measure] !== null);
    for (const points of runs) p.line(inside(points).map((point) => [point[0] / 1000, point[measure]]), `${LIVE_COLOURS[name]} thin`);
    p.line(liveMean(runs, measure), LIVE_COLOURS[name]);
  }
  return p;
}

function liveSays(curves) {
  const names = Object.keys(curves).filter((name) => Number.isFinite(liveLast(curves[name], LIVE_MEASURES.return)));
  if (!names.length) return "Nothing has been trained with these settings yet.";
  const of = (measure, digits) => names.map((name) => `${name} ${fmt(liveLast(curves[name], measure), digits)}`).join(", ");
  return `Mean return of three seeds (500 at most): ${of(LIVE_MEASURES.return, 0)}. Entropy: ${of(LIVE_MEASURES.entropy, 2)}.`;
}

function liveTable(curves) {
  const cell = (value, digits) => (Number.isFinite(value) ? fmt(value, digits) : "–");
  const numbers = (name) => {
    const recent = curves[name].flatMap((points) => points.filter((point) => point[0] <= TRAINING.budget).slice(-5).map((point) => point[3])).filter((dead) => dead !== null);
    return [el("span", { class: "narrow" }, key(LIVE_COLOURS[name]), name), fmt(liveSteps(curves[name]) / 1000, 0), cell(liveLast(curves[name], 1), 0), cell(liveLast(curves[name], 2), 2), cell(recent.length ? 100 * meanOf(recent) : NaN, 0)];
  };
  return table(["", "steps, k", "return", "entropy", "dead, % lately"], Object.keys(curves).map(numbers));
}

function livePicture(curves) {
  const what = liveSays(curves);
  const small = (measure, of, options) => livePlot(of, measure, { height: 180, ...options });
  return [
    pictures(
      figure(livePlot(curves, 1, { y: [0, 500], label: what, yLabel: "return", height: 240 }), "Return of the last 32 episodes. Thick: mean of three seeds, thin: each seed."),
      el("div", {},
        figure(small(2, curves, { y: [0, 0.7], label: `Entropy. ${what}`, yLabel: "entropy" }), "Entropy of the policy: 0.69 is a coin toss, 0 always the same action."),
        figure(small(3, { GRPO: curves.GRPO, DAPO: curves.DAPO }, { y: [0, 1], label: "Share of dead groups", yLabel: "dead" }), "Share of dead groups, whose members all have the same return."))),
    liveTable(curves),
  ];
}

// A cart that the policy drives as it is now, with random numbers of its own: training is the same with and without it
function liveGame(run) {
  const random = chance(run.seed + 2000);
  return makeGame((observation) => drawAction(run.model.logs(observation), random), random);
}

// The stage of an algorithm: the cart of its first seed, which stands still before training, and how long it lasts
function liveStage(name) {
  const stage = svg("svg", { viewBox: "0 40 460 205", role: "img", "aria-label": `The cart of ${name}` }), label = el("figcaption", {});
  const said = (...parts) => label.replaceChildren(key(LIVE_COLOURS[name]), ...parts.map((part) => el("span", { class: "narrow" }, part)));
  return {
    root: el("figure", { class: "cart" }, label, stage),
    move: () => stage.replaceChildren(...drawCart(live ? gameBetween(live.games[name]) : [0, 0, 0, 0], LIVE_COLOURS[name])),
    tell() {
      const last = live && live.runs.find((run) => run.algorithm === name).points.at(-1);
      if (last) said(`${name},`, `${last[0].toLocaleString("en")} steps:`, `lasts ${fmt(last[1], 0)}`);
      else said(`${name},`, "untrained");
    },
  };
}

function liveCurves(runs) {
  const curves = {};
  for (const run of runs) (curves[run.algorithm] ||= []).push(run.points);
  return curves;
}

widget("live", {
  state: { seed: 1, lr: "0.01", clip: 1, kind: "return_to_go", groupSize: "8" },
  guess: {
    question: "Ten times the learning rate, and no clip. What happens to the policy?",
    options: ["It learns ten times as fast", "It becomes certain too early", "It stays a coin"],
    right: 1,
    state: { seed: 1, lr: "0.1", clip: 0, kind: "return_to_go", groupSize: "8" },
    because: "PPO’s and DAPO’s entropy falls to nearly 0 in the first updates; GRPO’s KL term pulls it back, again and again. If a policy always does the same, all members of a group get the same return: there is nothing to compare.",
  },
  examples: {
    "As it should be": { seed: 1, lr: "0.01", clip: 1, kind: "return_to_go", groupSize: "8" },
    "Ten times the learning rate": { seed: 1, lr: "0.1", clip: 1, kind: "return_to_go", groupSize: "8" },
    "Too greedy: ten times, no clip": { seed: 1, lr: "0.1", clip: 0, kind: "return_to_go", groupSize: "8" },
    "Far too greedy: thirty times": { seed: 1, lr: "0.3", clip: 0, kind: "return_to_go", groupSize: "8" },
    "Only the outcome, as in the papers": { seed: 1, lr: "0.01", clip: 1, kind: "outcome", groupSize: "8" },
  },
  controls: [
    range("seed", "First of the three seeds", 0, 60, 1, 0),
    choice("lr", "Learning rate", { 0.003: "0.003", 0.01: "0.01", 0.03: "0.03", 0.1: "0.1", 0.3: "0.3" }),
    choice("kind", "Groups compare", { return_to_go: "returns to go", outcome: "only the outcome" }),
    choice("groupSize", "Members of a group", { 2: "2", 4: "4", 8: "8", 16: "16" }),
    tick("clip", "Clip the ratio"),
  ],
  runs: () => (live ? live.runs : []),
  // The same code, without the page: for the recording
  record: (state, given) => {
    const runs = liveRuns(state, given);
    for (const run of runs) for (const _ of run.slices);
    return runs.map(({ algorithm, seed, points }) => ({ algorithm, seed, points }));
  },
  draw(state) {
    const key = liveKey(state);
    // Drawn anew: what trains pauses
    if (live) live.playing = false;
    if (live && live.key !== key) live = null;
    const recorded = DATA.live.find((each) => liveKey(each.state) === key);
    const figures = el("div", {}), status = says(), stages = Object.keys(LIVE_ALGORITHMS).map(liveStage);
    const carts = el("div", { class: "carts" }, stages.map((stage) => stage.root));
    const train = el("button", { type: "button", onclick: () => toggle() }), reset = el("button", { type: "button", onclick: () => again() }, "Start over");
    const show = () => {
      figures.replaceChildren(...livePicture(liveCurves(live ? live.runs : recorded ? recorded.runs : liveRuns(state))));
      for (const stage of stages) { stage.move(); stage.tell(); }
    };
    const tell = (what) => { status.textContent = what; train.textContent = !live ? "Train" : live.playing ? "Pause" : "Resume"; };
    const said = () => liveSays(liveCurves(live.runs));
    const over = () => live.runs.every((run) => run.done);

    function frame(now) {
      if (!live || !live.playing || !figures.isConnected) return;
      const began = performance.now();
      liveAdvance(live.runs, LIVE_SLICE);
      live.spent += performance.now() - began;
      if (now - live.drawn > LIVE_REDRAW || over()) { live.drawn = now; show(); }
      if (over()) tell(`Trained in ${fmt(live.spent / 1000, 1)} s on this machine. ${said()}`);
      else requestAnimationFrame(frame);
    }
    // The carts go on after training
    const drive = whileSeen(carts, () => live && live.playing, (seconds) => {
      for (const game of Object.values(live.games)) gameAdvance(game, seconds);
      for (const stage of stages) stage.move();
    });
    function toggle() {
      if (live && live.playing) { live.playing = false; tell(`Paused. ${said()}`); show(); return; }
      live ||= begun();
      live.playing = true;
      tell(over() ? said() : "Training: nine agents take turns between the frames of this page.");
      show();
      if (!over()) requestAnimationFrame(frame);
      drive();
    }
    function begun() {
      const runs = liveRuns(state), firsts = runs.filter((run) => run.seed === state.seed);
      return { key, runs, games: Object.fromEntries(firsts.map((run) => [run.algorithm, liveGame(run)])), spent: 0, drawn: 0 };
    }
    function again() { live = null; begin(); }
    function begin() {
      show();
      if (live) tell(said());
      else tell(recorded ? `This is a recording made with this page’s code; press Train to see it live. ${liveSays(liveCurves(recorded.runs))}` : "There is no recording of these settings: press Train.");
    }
    begin();
    const driven = "Each cart is driven in real time by the policy as it is at this moment, that of the first seed. How many steps it lasts is the mean of its last 32 episodes in training, 500 at most.";
    return [el("div", { class: "row" }, train, reset), status, carts, note(driven), figures];
  },
});
