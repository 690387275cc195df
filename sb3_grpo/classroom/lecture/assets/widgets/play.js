// A trained agent at work, which a visitor can push. It moves while it is on screen.
const PLAY_PAUSE = 1.2; // s that a fallen pole is looked at
const PLAY_TAU = 0.02; // s, a step
const PLAY_PUSH = 0.6; // m/s
const PLAY_STILL = matchMedia("(prefers-reduced-motion: reduce)");

function drawCart([x, , angle]) {
  const at = 230 + 88 * x, tip = [at + 150 * Math.sin(angle), 205 - 150 * Math.cos(angle)];
  return [
    svg("path", { class: "axis", d: "M10 222H450" }), svg("path", { class: "grid", d: `M${230 - 211} 205V240M${230 + 211} 205V240` }),
    svg("rect", { class: "fill-blue", x: at - 30, y: 205, width: 60, height: 32, rx: 4 }),
    svg("path", { class: "line orange", style: "stroke-width:9;stroke-linecap:round", d: `M${at} 205L${tip[0]} ${tip[1]}` }),
  ];
}

const trainedHere = () => WIDGETS.live.runs().find((run) => run.algorithm === "DAPO" && run.steps);
// The agent: a function from observations to the logits of the actions. The one trained in this page is DAPO's first
function playAgent(kind) {
  if (kind !== "live") return agentOf(kind);
  const run = trainedHere();
  return run ? (observation) => Array.from(run.model.logs(observation)) : agentOf("untrained");
}

function makeGame(kind) {
  const random = chance(3);
  return { kind, agent: playAgent(kind), random, now: CartPole.start(random), before: null, steps: 0, wait: 0, late: 0, ended: false };
}
const playStart = (game) => Object.assign(game, { now: CartPole.start(game.random), before: null, steps: 0, wait: 0, ended: false });
function playStep(game) {
  const [left, right] = game.agent(CartPole.observe(game.now)), { state, ended } = CartPole.step(game.now, +(right > left));
  Object.assign(game, { before: game.now, now: state, steps: game.steps + 1, ended, wait: ended ? PLAY_PAUSE : 0 });
}
// Time goes on: as many steps as fit; what is left over is where between two steps the picture is
function playAdvance(game, seconds) {
  if (game.wait > 0) { if ((game.wait -= seconds) <= 0) playStart(game); return; }
  for (game.late += Math.min(seconds, 0.25); game.late >= PLAY_TAU && !game.ended; game.late -= PLAY_TAU) playStep(game);
}
function playBetween({ before, now, late, ended }) {
  if (!before || ended) return now;
  const part = Math.min(late / PLAY_TAU, 1);
  return now.map((value, i) => before[i] + part * (value - before[i]));
}

let game = null, playWanted = !PLAY_STILL.matches;

function playSays() {
  const { steps, trained, untrained } = DATA.agents;
  return `Trained with DAPO for ${steps.toLocaleString("en")} steps, one seed. Mean return of 100 episodes: ${fmt(untrained.mean, 0)} before training, ${fmt(trained.mean, 0)} after.`;
}

widget("play", {
  state: { kind: "trained", strength: 1 },
  guess: {
    question: "The cart was not pushed during training. What does a push of 0.6 m/s do?",
    options: ["It falls", "It catches itself", "It runs off the track"],
    right: 1,
    because: `The policy looks at the state in every step, and a push only leads to another state. In ${fmt(100 * DATA.agents.trained.survives["0.6"], 0)} of 100 episodes with three such pushes it never fell; with pushes of 1.2 m/s in ${fmt(100 * DATA.agents.trained.survives["1.2"], 0)}, of 1.8 m/s in ${fmt(100 * DATA.agents.trained.survives["1.8"], 0)}.`,
  },
  examples: { Trained: { kind: "trained" }, Untrained: { kind: "untrained" } },
  controls: [
    range("strength", "How hard you push", 0.5, 3, 0.25),
    choice("kind", "Agent", { trained: "trained with DAPO", untrained: "untrained", live: "trained in this page" }),
  ],
  draw({ kind, strength }) {
    if (!game || game.kind !== kind) game = makeGame(kind);
    const mine = game;
    const stage = svg("svg", { viewBox: "0 0 460 250", class: "stage", tabindex: 0, role: "slider", "aria-label": "Push it: arrow keys left and right, or drag", "aria-valuemin": -10, "aria-valuemax": 10 });
    const counter = note(), status = el("p", { "aria-live": "polite" });
    const pause = el("button", { type: "button", onclick: () => { playWanted = !playWanted; label(); run(); } });
    const label = () => { pause.textContent = playWanted ? "Pause" : "Play"; };
    const push = (by) => {
      const [x, v, angle, w] = mine.now;
      Object.assign(mine, { now: [x, v + by * PLAY_PUSH, angle, w], before: null });
      status.textContent = `Pushed to the ${by < 0 ? "left" : "right"} in step ${mine.steps}.`;
      show();
    };
    const button = (text, by) => el("button", { type: "button", onclick: () => push(by * strength) }, text);

    function show() {
      const at = playBetween(mine);
      stage.replaceChildren(...drawCart(at));
      stage.setAttribute("aria-valuenow", fmt(at[0]).replace("−", "-"));
      stage.setAttribute("aria-valuetext", `cart at ${fmt(at[0])} m, pole at ${fmt((at[2] * 180) / Math.PI, 0)}°`);
      counter.textContent = `Step ${mine.steps}. ${mine.ended ? "It fell; it starts over." : ""}`;
    }
    let last = null, onScreen = false, asked = false;
    function frame(now) {
      asked = false;
      if (!stage.isConnected || mine !== game || !playWanted || !onScreen) { last = null; return; }
      if (last !== null) {
        const was = mine.ended;
        playAdvance(mine, (now - last) / 1000);
        if (mine.ended && !was && kind === "trained") status.textContent = `It fell after ${mine.steps} steps.`;
        show();
      }
      last = now;
      run();
    }
    function run() { if (!asked && playWanted && onScreen) { asked = true; requestAnimationFrame(frame); } }
    new IntersectionObserver((entries) => { onScreen = entries.at(-1).isIntersecting; run(); }).observe(stage);

    stage.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      push(event.key === "ArrowLeft" ? -strength : strength);
      event.preventDefault();
    });
    let held = null;
    stage.addEventListener("pointerdown", (event) => { held = event.clientX; stage.setPointerCapture(event.pointerId); });
    stage.addEventListener("pointerup", (event) => {
      const moved = held === null ? 0 : event.clientX - held;
      if (Math.abs(moved) > 8) push(strength * Math.min(Math.max(moved / 40, -2), 2));
      held = null;
    });
    stage.addEventListener("pointercancel", () => { held = null; });

    label();
    show();
    return pictures(
      figure(stage, `Drag across the picture, focus it and press an arrow key, or use the buttons: a push changes the speed by ${fmt(PLAY_PUSH * strength, 1)} m/s. One step is ${PLAY_TAU} s; there is no time limit here.`),
      el("div", {}, el("div", { class: "row" }, button("Push left", -1), button("Push right", 1), pause, el("button", { type: "button", onclick: () => { playStart(mine); status.textContent = ""; show(); } }, "Start over")),
        counter, status,
        kind === "live" && !trainedHere() ? el("p", {}, "Train an agent above first. This one is untrained.") : null,
        note(playSays())));
  },
});
