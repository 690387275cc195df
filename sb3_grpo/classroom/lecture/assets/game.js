// A cart in real time: as many steps as fit into the time that passes, and a picture of what is between two of them.
const GAME_STEP = 0.02; // s
const GAME_FALL = 0.25; // s until a pole that fell lies flat

function drawCart([x, , angle], colour) {
  const at = 230 + 88 * x, tip = [at + 150 * Math.sin(angle), 205 - 150 * Math.cos(angle)];
  return [
    svg("path", { class: "axis", d: "M10 222H450" }), svg("path", { class: "grid", d: `M${230 - 211} 205V240M${230 + 211} 205V240` }),
    svg("rect", { class: `fill-${colour}`, x: at - 30, y: 205, width: 60, height: 32, rx: 4 }),
    svg("path", { class: "pole", d: `M${at} 205L${tip[0]} ${tip[1]}` }),
  ];
}

// choose is a function from observations to actions
const makeGame = (choose, random) => gameStart({ choose, random, late: 0 });
const gameStart = (game) => Object.assign(game, { now: CartPole.start(game.random), before: null, steps: 0, down: 0, ended: false });
function gameStep(game) {
  const { state, ended } = CartPole.step(game.now, game.choose(CartPole.observe(game.now)));
  Object.assign(game, { before: game.now, now: state, steps: game.steps + 1, ended });
}
// A fall is looked at for half as long as the pole stood: who falls all the time is soon up again
const gamePause = ({ steps }) => Math.min(Math.max((GAME_STEP * steps) / 2, 0.35), 1.2);
// What is left over of the time is where between two steps the picture is
function gameAdvance(game, seconds) {
  if (game.ended) { if ((game.down += seconds) > gamePause(game)) gameStart(game); return; }
  for (game.late += Math.min(seconds, 0.25); game.late >= GAME_STEP && !game.ended; game.late -= GAME_STEP) gameStep(game);
}
function gameBetween({ before, now, late, down, ended }) {
  if (ended) {
    const [x, v, angle, w] = now, part = Math.min(down / GAME_FALL, 1) ** 2;
    return [x, v, angle + part * (Math.sign(angle) * Math.PI / 2 - angle), w];
  }
  if (!before) return now;
  const part = Math.min(late / GAME_STEP, 1);
  return now.map((value, i) => before[i] + part * (value - before[i]));
}

// Tells advance how many seconds passed, in each frame in which it is wanted and the element is on screen. Returns what starts it
function whileSeen(element, wanted, advance) {
  let last = null, onScreen = false, asked = false;
  function frame(now) {
    asked = false;
    if (!element.isConnected || !wanted() || !onScreen) { last = null; return; }
    if (last !== null) advance((now - last) / 1000);
    last = now;
    run();
  }
  function run() { if (!asked && wanted() && onScreen) { asked = true; requestAnimationFrame(frame); } }
  new IntersectionObserver((entries) => { onScreen = entries.at(-1).isIntersecting; run(); }).observe(element);
  return run;
}
