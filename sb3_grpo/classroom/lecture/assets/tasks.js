// Gymnasium's classic control tasks. Policies see observations in single precision, as they do there.
const wrap = (angle) => { const turn = 2 * Math.PI; return angle - turn * Math.floor((angle + Math.PI) / turn); };
const bound = (value, most) => Math.min(Math.max(value, -most), most);
const single = (values) => values.map(Math.fround);

const Tasks = {
  cartpole: {
    start: (random) => [0, 0, 0, 0].map(() => random.uniform(-0.05, 0.05)),
    observe: single,
    step([x, v, angle, w], action) {
      const force = action === 1 ? 10 : -10, cos = Math.cos(angle), sin = Math.sin(angle);
      const temp = (force + 0.05 * w * w * sin) / 1.1;
      const turning = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - (0.1 * cos * cos) / 1.1));
      const pulling = temp - (0.05 * turning * cos) / 1.1;
      // Euler: positions move with the speeds from before the step
      const state = [x + 0.02 * v, v + 0.02 * pulling, angle + 0.02 * w, w + 0.02 * turning];
      return { state, reward: 1, ended: Math.abs(state[0]) > 2.4 || Math.abs(state[2]) > (12 * 2 * Math.PI) / 360 };
    },
  },
  pendulum: {
    start: (random) => [random.uniform(-Math.PI, Math.PI), random.uniform(-1, 1)],
    observe: ([angle, w]) => single([Math.cos(angle), Math.sin(angle), w]),
    step([angle, w], action) {
      const torque = Math.fround(bound(action, 2));
      const cost = wrap(angle) ** 2 + 0.1 * w * w + 0.001 * torque * torque;
      const speed = bound(w + (15 * Math.sin(angle) + 3 * torque) * 0.05, 8);
      return { state: [angle + speed * 0.05, speed], reward: -cost, ended: false };
    },
  },
  acrobot: {
    start: (random) => single([0, 0, 0, 0].map(() => random.uniform(-0.1, 0.1))),
    observe: ([a, b, v, w]) => single([Math.cos(a), Math.sin(a), Math.cos(b), Math.sin(b), v, w]),
    step(state, action) {
      // Runge and Kutta, one step of 0.2 s
      const slope = (s) => acrobotSlope(s, action - 1), move = (s, k, t) => s.map((value, i) => value + t * k[i]);
      const k1 = slope(state), k2 = slope(move(state, k1, 0.1)), k3 = slope(move(state, k2, 0.1)), k4 = slope(move(state, k3, 0.2));
      const [a, b, v, w] = state.map((value, i) => value + (0.2 / 6) * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]));
      const next = [wrap(a), wrap(b), bound(v, 4 * Math.PI), bound(w, 9 * Math.PI)];
      const ended = -Math.cos(next[0]) - Math.cos(next[1] + next[0]) > 1;
      return { state: next, reward: ended ? 0 : -1, ended };
    },
  },
};

// Both links are 1 long and weigh 1, their centre is in the middle, their moment of inertia is 1
function acrobotSlope([a, b, v, w], torque) {
  const g = 9.8, cos = Math.cos(b), sin = Math.sin(b);
  const d1 = 0.25 + (1.25 + cos) + 2, d2 = 0.25 + 0.5 * cos + 1;
  const phi2 = 0.5 * g * Math.cos(a + b - Math.PI / 2);
  const phi1 = -0.5 * w * w * sin - w * v * sin + 1.5 * g * Math.cos(a - Math.PI / 2) + phi2;
  const lower = (torque + (d2 / d1) * phi1 - 0.5 * v * v * sin - phi2) / (0.25 + 1 - (d2 * d2) / d1);
  return [v, w, -(d2 * lower + phi1) / d1, lower];
}
