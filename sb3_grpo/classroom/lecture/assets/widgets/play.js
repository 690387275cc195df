// A trained agent at work, which a visitor can push. It moves while it is on screen.
const PLAY_PUSH = 0.6; // m/s
const PLAY_STILL = matchMedia("(prefers-reduced-motion: reduce)");

const trainedHere = () => WIDGETS.live.runs().find((run) => run.algorithm === "DAPO" && run.steps);
// The agent: a function from observations to the logits of the actions. The one trained in this page is DAPO's first
function playAgent(kind) {
  if (kind !== "live") return agentOf(kind);
  const run = trainedHere();
  return run ? (observation) => Array.from(run.model.logs(observation)) : agentOf("untrained");
}

// It takes the likelier action
function makePlay(kind) {
  const agent = playAgent(kind);
  const likelier = (observation) => { const [left, right] = agent(observation); return +(right > left); };
  return { kind, ...makeGame(likelier, chance(3)) };
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
    if (!game || game.kind !== kind) game = makePlay(kind);
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
      const at = gameBetween(mine);
      stage.replaceChildren(...drawCart(at, "green"));
      stage.setAttribute("aria-valuenow", fmt(at[0]).replace("−", "-"));
      stage.setAttribute("aria-valuetext", `cart at ${fmt(at[0])} m, pole at ${fmt((at[2] * 180) / Math.PI, 0)}°`);
      counter.textContent = `Step ${mine.steps}. ${mine.ended ? "It fell; it starts over." : ""}`;
    }
    const run = whileSeen(stage, () => mine === game && playWanted, (seconds) => {
      const was = mine.ended;
      gameAdvance(mine, seconds);
      if (mine.ended && !was && kind === "trained") status.textContent = `It fell after ${mine.steps} steps.`;
      show();
    });

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
      figure(stage, `Drag across the picture, focus it and press an arrow key, or use the buttons: a push changes the speed by ${fmt(PLAY_PUSH * strength, 1)} m/s. One step is ${GAME_STEP} s; there is no time limit here.`),
      el("div", {}, el("div", { class: "row" }, button("Push left", -1), button("Push right", 1), pause, el("button", { type: "button", onclick: () => { gameStart(mine); status.textContent = ""; show(); } }, "Start over")),
        counter, status,
        kind === "live" && !trainedHere() ? el("p", {}, "Train an agent above first. This one is untrained.") : null,
        note(playSays())));
  },
});
