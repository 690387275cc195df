// Networks of linear layers with tanh between them. All weights are one array: of each layer the rows of its matrix, then its
// biases, as torch has them.
const Network = {
  count: (sizes) => sizes.slice(1).reduce((sum, n, l) => sum + (sizes[l] + 1) * n, 0),

  // The last layer is small, so that a policy begins undecided
  init(sizes, random, last) {
    const weights = new Float64Array(Network.count(sizes));
    let at = 0;
    for (let l = 1; l < sizes.length; l++) {
      const scale = (l === sizes.length - 1 ? last : 1) / Math.sqrt(sizes[l - 1]);
      for (let k = 0; k < sizes[l] * sizes[l - 1]; k++) weights[at++] = scale * random.normal();
      at += sizes[l];
    }
    return weights;
  },

  // Room for the outputs of all layers, which forward fills, and for the slopes that backward takes through them
  room: (sizes) => ({ outputs: sizes.map((n) => new Float64Array(n)), slopes: sizes.map((n) => new Float64Array(n)) }),

  forward(sizes, weights, { outputs }) {
    const last = sizes.length - 1;
    let at = 0;
    for (let l = 1; l <= last; l++) {
      const from = outputs[l - 1], to = outputs[l], n = sizes[l - 1], biases = at + n * sizes[l];
      for (let j = 0; j < sizes[l]; j++) {
        let sum = weights[biases + j];
        for (let k = 0; k < n; k++) sum += weights[at++] * from[k];
        to[j] = l === last ? sum : Math.tanh(sum);
      }
      at = biases + sizes[l];
    }
    return outputs[last];
  },

  // Adds to the gradient; the slopes of the last layer are those of the loss with respect to the outputs
  backward(sizes, weights, { outputs, slopes }, gradient) {
    let at = weights.length;
    for (let l = sizes.length - 1; l > 0; l--) {
      const from = outputs[l - 1], slope = slopes[l], before = slopes[l - 1], n = sizes[l - 1], biases = at - sizes[l];
      at = biases - n * sizes[l];
      before.fill(0);
      for (let j = 0; j < sizes[l]; j++) {
        const row = at + j * n, s = slope[j];
        gradient[biases + j] += s;
        for (let k = 0; k < n; k++) {
          gradient[row + k] += s * from[k];
          before[k] += s * weights[row + k];
        }
      }
      if (l > 1) for (let k = 0; k < n; k++) before[k] *= 1 - from[k] * from[k];
    }
  },
};

// Adam as torch has it, with SB3's epsilon; the gradient is cut to a norm first
function adam(n, { lr, maxNorm = 0.5, beta1 = 0.9, beta2 = 0.999, eps = 1e-5 }) {
  const mean = new Float64Array(n), square = new Float64Array(n);
  let t = 0;
  return (weights, gradient) => {
    let norm = 0;
    for (let i = 0; i < n; i++) norm += gradient[i] * gradient[i];
    const cut = Math.min(1, maxNorm / (Math.sqrt(norm) + 1e-6));
    const step = lr / (1 - beta1 ** ++t), root = Math.sqrt(1 - beta2 ** t);
    for (let i = 0; i < n; i++) {
      const g = cut * gradient[i];
      mean[i] = beta1 * mean[i] + (1 - beta1) * g;
      square[i] = beta2 * square[i] + (1 - beta2) * g * g;
      weights[i] -= (step * mean[i]) / (Math.sqrt(square[i]) / root + eps);
    }
  };
}

// An agent that the package trained, or the same before training: logits of the actions
function agentOf(kind) {
  const { sizes } = DATA.agents, weights = Float64Array.from(DATA.agents[kind].weights), room = Network.room(sizes);
  return (observation) => { room.outputs[0].set(observation); return Array.from(Network.forward(sizes, weights, room)); };
}
