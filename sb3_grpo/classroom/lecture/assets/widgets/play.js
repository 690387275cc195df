// Trained agents at work, which a visitor can push. They move while they are on screen.
const PLAY_PAUSE = 1.2; // s that a fallen pole is looked at
const PLAY_STILL = matchMedia("(prefers-reduced-motion: reduce)");
const playLine = (x1, y1, x2, y2, width, colour) => svg("path", { class: `line ${colour}`, style: `stroke-width:${width};stroke-linecap:round`, d: `M${x1} ${y1}L${x2} ${y2}` });

// How each task is drawn, how long a step is in seconds, the speed that a push of strength 1 adds, and what is told
const SCENES = {
  cartpole: {
    tau: 0.02, unit: "m/s", amount: 0.6,
    push: ([x, v, angle, w], by) => [x, v + by, angle, w],
    draw([x, , angle]) {
      const at = 230 + 88 * x;
      return [svg("path", { class: "axis", d: "M10 222H450" }), svg("path", { class: "grid", d: `M${230 - 211} 205V240M${230 + 211} 205V240` }),
        svg("rect", { class: "fill-blue", x: at - 30, y: 205, width: 60, height: 32, rx: 4 }), playLine(at, 205, at + 150 * Math.sin(angle), 205 - 150 * Math.cos(angle), 9, "orange")];
    },
    says: ([x, , angle]) => `cart at ${fmt(x)} m, pole at ${fmt((angle * 180) / Math.PI, 0)}°`,
    value: ([x]) => x, ends: "It fell",
  },
  pendulum: {
    tau: 0.05, unit: "rad/s", amount: 4,
    push: ([angle, w], by) => [angle, bound(w + by, 8)],
    draw([angle]) {
      const x = 230 + 110 * Math.sin(angle), y = 140 - 110 * Math.cos(angle);
      return [svg("circle", { class: "axis", cx: 230, cy: 140, r: 110 }), playLine(230, 140, x, y, 12, "orange"),
        svg("circle", { class: "fill-blue", cx: 230, cy: 140, r: 8 }), svg("circle", { class: "fill-orange", cx: x, cy: y, r: 14 })];
    },
    says: ([angle]) => `pendulum at ${fmt((wrap(angle) * 180) / Math.PI, 0)}°, upright is 0°`,
    value: ([angle]) => wrap(angle), ends: "It ended",
  },
  acrobot: {
    tau: 0.2, unit: "rad/s", amount: 1.5,
    push: ([a, b, v, w], by) => [a, b, bound(v + by, 4 * Math.PI), w],
    draw([a, b]) {
      const x = 230 + 62 * Math.sin(a), y = 140 + 62 * Math.cos(a), tip = [x + 62 * Math.sin(a + b), y + 62 * Math.cos(a + b)];
      return [svg("path", { class: "line dashed green", d: "M60 78H400" }), svg("text", { x: 62, y: 70, class: "soft" }, "goal"),
        playLine(230, 140, x, y, 12, "blue"), playLine(x, y, ...tip, 12, "orange"), svg("circle", { class: "fill-grey", cx: 230, cy: 140, r: 6 }), svg("circle", { class: "fill-grey", cx: x, cy: y, r: 6 })];
    },
    says: ([a, b]) => `lower end ${fmt(-Math.cos(a) - Math.cos(a + b))} above the pivot, the goal is 1`,
    value: ([a]) => wrap(a), ends: "It got there",
  },
};

const trainedHere = () => WIDGETS.live.runs().find((run) => run.algorithm === "DAPO" && run.steps);
// The agent: a function from observations to what the network says. The one trained in this page is DAPO's first
function playAgent({ task, kind }) {
  if (kind !== "live") return agentOf(task, kind);
  const run = trainedHere();
  return run && task === "cartpole" ? (observation) => Array.from(run.model.logs(observation)) : agentOf(task, "untrained");
}

function makeGame(state) {
  const task = Tasks[state.task], random = chance(3);
  return { ...state, task, scene: SCENES[state.task], agent: playAgent(state), random, now: task.start(random), before: null, steps: 0, total: 0, wait: 0, late: 0, ended: false };
}
function playStart(game) { Object.assign(game, { now: game.task.start(game.random), before: null, steps: 0, total: 0, wait: 0, ended: false }); }
function playStep(game) {
  const { state, reward, ended } = game.task.step(game.now, decide(game.agent(game.task.observe(game.now))));
  Object.assign(game, { before: game.now, now: state, steps: game.steps + 1, total: game.total + reward, ended, wait: ended ? PLAY_PAUSE : 0 });
}
// Time goes on: as many steps as fit; what is left over is where between two steps the picture is
function playAdvance(game, seconds) {
  if (game.wait > 0) { if ((game.wait -= seconds) <= 0) playStart(game); return; }
  for (game.late += Math.min(seconds, 0.25); game.late >= game.scene.tau && !game.ended; game.late -= game.scene.tau) playStep(game);
}
// Between two states: angles may have gone around
function playBetween({ before, now, late, scene, ended }) {
  if (!before || ended) return now;
  const part = Math.min(late / scene.tau, 1);
  return now.map((value, i) => { const gone = value - before[i]; return before[i] + part * (Math.abs(gone) > Math.PI && now.length === 4 ? wrap(gone) : gone); });
}

let game = null, playWanted = !PLAY_STILL.matches;

function playTable(state) {
  const rows = Object.entries(DATA.agents).map(([task, { env, steps, trained, untrained }]) =>
    el("tr", {}, el("th", { scope: "row", class: "narrow" }, task === state.task ? "▸ " : "", env.replace(/-v\d$/, "")), [`${steps.toLocaleString("en")}`, fmt(untrained.mean, 0), `${fmt(trained.mean, 0)} ± ${fmt(trained.std, 0)}`].map((text) => el("td", { class: "narrow" }, text))));
  return el("table", {}, el("caption", {}, "Mean return of 100 episodes before and after training, ± the standard deviation between episodes"),
    el("thead", {}, el("tr", {}, ["DAPO, one seed", "steps", "before", "after"].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, rows));
}

widget("play", {
  state: { task: "cartpole", kind: "trained", strength: 1 },
  guess: {
    question: "The cart was not pushed during training. What does a push of 0.6 m/s do?",
    options: ["It falls", "It catches itself", "It runs off the track"],
    right: 1,
    because: `The policy looks at the state in every step, and a push only leads to another state. In ${fmt(100 * DATA.agents.cartpole.trained.survives["0.6"], 0)} of 100 episodes with three such pushes it never fell; with pushes of 1.2 m/s in ${fmt(100 * DATA.agents.cartpole.trained.survives["1.2"], 0)}, of 1.8 m/s in ${fmt(100 * DATA.agents.cartpole.trained.survives["1.8"], 0)}.`,
  },
  examples: {
    "Trained cart": { task: "cartpole", kind: "trained" },
    "Untrained cart": { task: "cartpole", kind: "untrained" },
    Pendulum: { task: "pendulum", kind: "trained" },
    Acrobot: { task: "acrobot", kind: "trained" },
  },
  controls: [
    range("strength", "How hard you push", 0.5, 3, 0.25),
    choice("task", "Task", { cartpole: "CartPole", pendulum: "Pendulum", acrobot: "Acrobot" }),
    choice("kind", "Agent", { trained: "trained with DAPO", untrained: "untrained", live: "trained in this page" }),
  ],
  draw(state) {
    const chosen = { ...state, task: state.task in SCENES ? state.task : "cartpole", kind: ["trained", "untrained", "live"].includes(state.kind) ? state.kind : "trained" };
    if (!game || game.chosen !== `${chosen.task} ${chosen.kind}`) game = { ...makeGame(chosen), chosen: `${chosen.task} ${chosen.kind}` };
    const mine = game, { scene } = mine;
    const stage = svg("svg", { viewBox: "0 0 460 280", class: "stage", tabindex: 0, role: "slider", "aria-label": "Push it: arrow keys left and right, or drag", "aria-valuemin": -10, "aria-valuemax": 10 });
    const counter = el("p", { class: "note" }), status = el("p", { "aria-live": "polite" });
    const pause = el("button", { type: "button", onclick: () => { playWanted = !playWanted; label(); run(); } });
    const label = () => { pause.textContent = playWanted ? "Pause" : "Play"; };
    const push = (by) => {
      mine.now = scene.push(mine.now, by * scene.amount);
      mine.before = null;
      status.textContent = `Pushed to the ${by < 0 ? "left" : "right"} in step ${mine.steps}.`;
      show();
    };
    const button = (text, by) => el("button", { type: "button", onclick: () => push(by * state.strength) }, text);

    function show() {
      const at = playBetween(mine);
      stage.replaceChildren(...scene.draw(at));
      stage.setAttribute("aria-valuenow", fmt(scene.value(at)).replace("−", "-"));
      stage.setAttribute("aria-valuetext", scene.says(at));
      counter.textContent = `Step ${mine.steps}, return ${fmt(mine.total, 0)}. ${mine.ended ? `${scene.ends}; it starts over.` : ""}`;
    }
    let last = null, onScreen = false, asked = false;
    function frame(now) {
      asked = false;
      if (!stage.isConnected || mine !== game || !playWanted || !onScreen) { last = null; return; }
      if (last !== null) {
        const was = mine.ended;
        playAdvance(mine, (now - last) / 1000);
        if (mine.ended && !was && mine.kind === "trained") status.textContent = `${scene.ends} after ${mine.steps} steps.`;
        show();
      }
      last = now;
      run();
    }
    function run() { if (!asked && playWanted && onScreen) { asked = true; requestAnimationFrame(frame); } }
    new IntersectionObserver((entries) => { onScreen = entries.at(-1).isIntersecting; run(); }).observe(stage);

    stage.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      push(event.key === "ArrowLeft" ? -state.strength : state.strength);
      event.preventDefault();
    });
    let held = null;
    stage.addEventListener("pointerdown", (event) => { held = event.clientX; stage.setPointerCapture(event.pointerId); });
    stage.addEventListener("pointerup", (event) => { if (held !== null && Math.abs(event.clientX - held) > 8) push(state.strength * bound((event.clientX - held) / 40, 2)); held = null; });
    stage.addEventListener("pointercancel", () => { held = null; });

    label();
    show();
    return el("div", { class: "pictures" },
      el("figure", {}, stage, el("figcaption", {}, `Drag across the picture, focus it and press an arrow key, or use the buttons: a push changes the speed by ${fmt(scene.amount * state.strength, 1)} ${scene.unit}. One step is ${scene.tau} s, as in Gymnasium; there is no time limit here.`)),
      el("div", {}, el("div", { class: "row" }, button("Push left", -1), button("Push right", 1), pause, el("button", { type: "button", onclick: () => { playStart(mine); status.textContent = ""; show(); } }, "Start over")),
        counter, status,
        chosen.kind === "live" && !trainedHere() ? el("p", {}, "Train an agent above first. This one is untrained.") : null,
        playTable(chosen)));
  },
});
