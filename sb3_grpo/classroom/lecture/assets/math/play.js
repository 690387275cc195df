// What the networks of the trained agents say of a random observation
M.agent = (task, kind, seed) => {
  const name = Object.keys(DATA.agents)[task], random = chance(seed);
  return agentOf(name, ["untrained", "trained"][kind])(Array.from({ length: DATA.agents[name].sizes[0] }, () => random.uniform(-1, 1)));
};

// The last step of an episode of random actions: observation, reward, whether it ended
function randomEpisode(task, seed, steps, draw) {
  const random = chance(seed);
  let state = task.start(random), last;
  for (let t = 0; t < steps; t++) {
    last = task.step(state, draw(random));
    state = last.state;
    if (last.ended) break;
  }
  return [...task.observe(state), last.reward, +last.ended];
}
M.cartpole = (seed, steps) => randomEpisode(Tasks.cartpole, seed, steps, (random) => random.below(2));
M.pendulum = (seed, steps) => randomEpisode(Tasks.pendulum, seed, steps, (random) => Math.fround(random.uniform(-2.5, 2.5)));
M.acrobot = (seed, steps) => randomEpisode(Tasks.acrobot, seed, steps, (random) => random.below(3));
