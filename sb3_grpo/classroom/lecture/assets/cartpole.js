// Gymnasium's CartPole. Policies see observations in single precision, as they do there.
const CartPole = {
  start: (random) => [0, 0, 0, 0].map(() => random.uniform(-0.05, 0.05)),
  observe: (state) => state.map(Math.fround),
  step([x, v, angle, w], action) {
    const force = action === 1 ? 10 : -10, cos = Math.cos(angle), sin = Math.sin(angle);
    const temp = (force + 0.05 * w * w * sin) / 1.1;
    const turning = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - (0.1 * cos * cos) / 1.1));
    const pulling = temp - (0.05 * turning * cos) / 1.1;
    // Euler: positions move with the speeds from before the step
    const state = [x + 0.02 * v, v + 0.02 * pulling, angle + 0.02 * w, w + 0.02 * turning];
    return { state, reward: 1, ended: Math.abs(state[0]) > 2.4 || Math.abs(state[2]) > (12 * 2 * Math.PI) / 360 };
  },
};
