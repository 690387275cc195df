// Trained agents: what their networks say
function agentOf(name, kind) {
  const { sizes } = DATA.agents[name], weights = Float64Array.from(DATA.agents[name][kind].weights), room = Network.room(sizes);
  return (observation) => { room.outputs[0].set(observation); return Array.from(Network.forward(sizes, weights, room)); };
}

M.agent = (task, kind, seed) => {
  const name = Object.keys(DATA.agents)[task], random = chance(seed);
  return agentOf(name, ["untrained", "trained"][kind])(Array.from({ length: DATA.agents[name].sizes[0] }, () => random.uniform(-1, 1)));
};

// The likeliest action: the largest logit, or the mean itself
function decide(outputs) {
  return outputs.length === 1 ? outputs[0] : outputs.indexOf(Math.max(...outputs));
}
