// The training loops: one recorded update of a real training, stage by stage, and the lines of the loop that are at work.
// Stages: what was played, its rewards, its advantages, the ratios before each step of the optimizer, and the end.
function loopStages(record) {
  const ofOptimizer = record.optimizer_steps.map((step, k) => ({ kind: "ratios", k, name: `gradient step ${k + 1}` }));
  return [{ kind: "rollout", name: "rollout" }, { kind: "rewards", name: "rewards" }, { kind: "advantages", name: "advantages" },
    ...ofOptimizer, { kind: "after", name: "new probabilities" }];
}

// Log probabilities of all actions after k steps of the optimizer
const logProbsAfter = (record, k) => (k === 0 ? record.steps.log_prob : record.optimizer_steps[k - 1].log_prob);
const ratioOf = (record, i, k) => Math.exp(logProbsAfter(record, k)[i] - record.steps.log_prob[i]);
const isCutOff = (step, i) => step.below.includes(i) || step.above.includes(i);
const episodeOf = (record, i) => record.episodes.findLastIndex((episode) => episode.first <= i);
const indices = (episode) => Array.from({ length: episode.n_steps }, (_, t) => episode.first + t);

// What each stage draws: from where to where each bar goes, and the lines beside the bars
function loopBars(record, stage) {
  const { steps, settings } = record, K = record.optimizer_steps.length;
  const probability = (i, k) => Math.exp(logProbsAfter(record, k)[i]);
  const sign = (i) => (steps.advantage[i] > 0 ? "blue" : steps.advantage[i] < 0 ? "orange" : "grey");
  if (stage.kind === "rollout" || stage.kind === "after") {
    // Up and down are right and left; tokens have no direction
    const direction = (i) => (steps.token || steps.action[i] === 1 ? 1 : -1);
    const k = stage.kind === "after" ? K : 0;
    return { domain: [steps.token ? 0 : -1, 1], base: 0, lines: [0], value: (i) => direction(i) * probability(i, k),
      before: k ? (i) => direction(i) * probability(i, 0) : null, color: k ? sign : () => "grey" };
  }
  if (stage.kind === "rewards") return { domain: [0, 1], base: 0, lines: [0], value: (i) => steps.reward[i], color: () => "green" };
  if (stage.kind === "advantages") {
    const reach = Math.max(...steps.advantage.map(Math.abs));
    return { domain: [-reach, reach], base: 0, lines: [0], value: (i) => steps.advantage[i], color: sign };
  }
  // The same scale at each step; where a ratio is beyond it, its bar ends at the edge
  const now = record.optimizer_steps[stage.k], used = advantagesOf(record, now.epoch), reach = 3 * settings.clip_high;
  const color = (i) => (isCutOff(now, i) ? "pink" : used[i] > 0 ? "blue" : used[i] < 0 ? "orange" : "grey");
  return { domain: [1 - reach, 1 + reach], base: 1, lines: [1 - settings.clip_low, 1, 1 + settings.clip_high], value: (i) => ratioOf(record, i, stage.k),
    color, cut: (i) => isCutOff(now, i), faint: (i) => !now.steps.includes(i) };
}

// The advantages as the losses of an epoch take them: PPO normalises them in each minibatch
function advantagesOf(record, epoch) {
  const used = [...record.steps.advantage];
  for (const step of record.optimizer_steps.filter((each) => each.epoch === epoch && each.advantage)) step.steps.forEach((i, place) => { used[i] = step.advantage[place]; });
  return used;
}

const showsValues = (record, stage) => record.steps.value && !["ratios", "after"].includes(stage.kind);

// Rows of episodes, one block for each group or copy of the environment
function loopBlocks(record, stage) {
  const inOrder = record.episodes.map((episode, e) => ({ ...episode, e }));
  if (record.algorithm === "PPO") {
    return [...new Set(inOrder.map((episode) => episode.env))].map((env) => {
      const row = inOrder.filter((episode) => episode.env === env), values = row.flatMap(indices).map((i) => record.steps.value[i]);
      return { title: `Copy ${env + 1}${showsValues(record, stage) ? `. Line: values V(s), ${fmt(Math.min(...values), 1)} to ${fmt(Math.max(...values), 1)}` : ""}`, rows: [{ episodes: row }] };
    });
  }
  const compared = !["rollout", "rewards"].includes(stage.kind), known = stage.kind !== "rollout";
  return record.groups.map((group, g) => {
    const members = inOrder.filter((episode) => episode.group === g), { prompt } = members[0];
    const figures = group.dead ? "all the same: σ = 0, dead" : `μ = ${fmt(group.mean)}, σ = ${fmt(group.std)}`;
    const title = `Group ${g + 1}${prompt ? `: ${prompt}` : ""}${compared ? `${prompt ? "," : ":"} ${figures}` : ""}`;
    const label = ({ first, reward }) => (!known ? "" : compared ? `Â = ${fmt(record.steps.advantage[first])}` : `R = ${reward}`);
    const rows = prompt ? [{ episodes: members }] : members.map((episode) => ({ episodes: [episode], label: label(episode) }));
    return { title, rows, dead: group.dead && compared };
  });
}

// The bars of all steps. A step can be chosen with the pointer; the keyboard has a control for it
function loopPicture(record, stage, chosen, change, label) {
  const bars = loopBars(record, stage), blocks = loopBlocks(record, stage), { token, value } = record.steps;
  const width = 460, right = !token && record.groups.length ? 74 : 2, gap = token ? 16 : 9, below = token ? 17 : 5;
  // Values and bars share their room
  const above = showsValues(record, stage) ? 40 : 0, height = token ? 46 : value ? 132 - above : 27;
  const rows = blocks.flatMap((block) => block.rows);
  const room = rows.map(({ episodes }) => (width - 2 - right - gap * (episodes.length - 1)) / episodes.reduce((n, episode) => n + episode.n_steps, 0));
  const cell = Math.min(26, ...room);
  const root = svg("svg", { role: "img", "aria-label": label, class: "strips" });
  let y = 0;
  for (const block of blocks) {
    const parts = svg("g", block.dead ? { class: "faint" } : {});
    parts.append(svg("text", { x: 2, y: y + 14, class: "soft" }, block.title));
    y += 20;
    for (const row of block.rows) {
      const top = y + above, Y = (at) => top + height * (1 - (Math.min(Math.max(at, bars.domain[0]), bars.domain[1]) - bars.domain[0]) / (bars.domain[1] - bars.domain[0]));
      let x = 2;
      for (const episode of row.episodes) {
        const end = x + cell * episode.n_steps;
        for (const at of bars.lines) parts.append(svg("path", { class: at === bars.base ? "axis" : "axis dashed", d: `M${x} ${Y(at)}H${end}` }));
        if (above) parts.append(valueLine(record, episode, x, y, cell, above - 8));
        for (const i of indices(episode)) {
          parts.append(...bar(i, x, cell, Y, bars));
          if (token) parts.append(svg("text", { x: x + cell / 2, y: top + height + 13, "text-anchor": "middle" }, token[i] || "⏎"));
          parts.append(svg("rect", { x, y: y, width: cell, height: above + height + below - 2, class: i === chosen ? "chosen" : "target", onclick: () => change({ step: i + 1 }) }));
          x += cell;
        }
        x += gap;
      }
      if (row.label) parts.append(svg("text", { x: width, y: top + height / 2 + 5, "text-anchor": "end" }, row.label));
      y = top + height + below;
    }
    root.append(parts);
    y += 6;
  }
  root.setAttribute("viewBox", `0 0 ${width} ${y}`);
  return root;
}

function bar(i, x, cell, Y, { value, base, before, color, cut, faint }) {
  const from = Y(base), to = Y(value(i)), drawn = [];
  // A ratio of exactly 1 is to be seen, too
  const y = Math.min(from, to) - (Math.abs(from - to) < 2 ? 1 : 0), height = Math.max(Math.abs(from - to), 2), inset = Math.min(1, cell / 8);
  drawn.push(svg("rect", { x: x + inset, y, width: cell - 2 * inset, height, class: `fill-${color(i)}${faint && faint(i) ? " faint" : ""}` }));
  if (before) drawn.push(svg("path", { class: "mark", d: `M${x} ${Y(before(i))}h${cell}` }));
  // On the other side of the line, where nothing else is
  if (cut && cut(i)) drawn.push(svg("text", { x: x + cell / 2, y: to < from ? from + 12 : from - 3, "text-anchor": "middle", class: "cut" }, "×"));
  return drawn;
}

function valueLine(record, episode, x, y, cell, height) {
  const values = record.steps.value, low = Math.min(...values), high = Math.max(...values);
  const points = indices(episode).map((i, t) => `${(x + (t + 0.5) * cell).toFixed(1)} ${(y + 2 + height * (1 - (values[i] - low) / (high - low))).toFixed(1)}`);
  return points.length > 1 ? svg("path", { class: "line thin green", d: `M${points.join("L")}` }) : svg("g", {});
}

// What the picture says, in words
const count = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;

function loopSays(record, stage) {
  const { steps, episodes } = record, all = steps.reward.map((_, i) => i), thing = steps.token ? "token" : "action";
  const better = all.filter((i) => steps.advantage[i] > 0), worse = all.filter((i) => steps.advantage[i] < 0);
  if (stage.kind === "ratios") {
    const now = record.optimizer_steps[stage.k], ratios = now.steps.map((i) => ratioOf(record, i, stage.k));
    const n = now.below.length + now.above.length;
    const where = `Pass ${now.epoch}, minibatch ${now.minibatch}: ${count(now.steps.length, thing)} (in full colour).`;
    if (stage.k === 0) return `${where} The policy is still the one that sampled, so every ratio is 1 and nothing can be cut off.`;
    const cut = n ? `${n} of them ${n === 1 ? "has" : "have"} moved far enough and get${n === 1 ? "s" : ""} no gradient (×): ${now.above.length} above, ${now.below.length} below.` : "None is cut off.";
    return `${where} Their ratios range from ${fmt(Math.min(...ratios))} to ${fmt(Math.max(...ratios))}. ${cut} Approximate KL: ${fmt(now.approx_kl, 4)}.`;
  }
  if (stage.kind === "after") {
    const last = logProbsAfter(record, record.optimizer_steps.length);
    const up = better.filter((i) => last[i] > steps.log_prob[i]).length, down = worse.filter((i) => last[i] < steps.log_prob[i]).length;
    return `After ${count(record.optimizer_steps.length, "gradient step")}: ${up} of ${count(better.length, thing)} with Â > 0 ${up === 1 ? "is" : "are"} more probable than before, ${down} of ${worse.length} with Â < 0 less. Not all of them, because they share one network${steps.token ? ", and the end ⏎ follows right and wrong answers alike" : ""}.`;
  }
  if (record.algorithm === "PPO") return ppoSays(record, stage, better, worse);
  const groups = record.groups.length, size = episodes.length / groups;
  if (stage.kind === "rollout") {
    return steps.token ? `${size} answers to each of ${groups} sums. Each bar is the probability of the token below it.`
      : `${groups} groups of ${size} episodes; those of a group have the same start. Up: pushed right, down: left; the length is the probability.`;
  }
  if (stage.kind === "rewards") {
    return steps.token ? `The verifier gives 1 for a right answer, at its last token: ${episodes.filter((episode) => episode.reward === 1).length} of ${episodes.length} are right.`
      : "Each step earns 1, so R, the sum over an episode, is how long the pole stayed up.";
  }
  const dead = record.groups.map((group, g) => [group, g]).filter(([group]) => group.dead);
  const who = steps.token ? "answer" : "episode";
  return `Each ${who} is compared with the mean of its group, and all its ${steps.token ? "tokens" : "steps"} get the same Â = (R − μ) / σ. ${dead.length
    ? dead.map(([group, g]) => `Group ${g + 1} is dead: all its answers got ${group.returns[0]}, so there is nothing to compare.`).join(" ") : "No critic is needed."}`;
}

function ppoSays(record, stage, better, worse) {
  const { steps, episodes } = record, n = steps.reward.length, copies = new Set(episodes.map((episode) => episode.env)).size;
  if (stage.kind === "rollout") return `${copies} copies of CartPole run ${n / copies} steps each: ${episodes.length} episodes or parts of them. Up: pushed right, down: left; the length is the probability.`;
  if (stage.kind === "rewards") return `Each of the ${n} rewards is 1: on their own they cannot say which action was good.`;
  const worst = steps.advantage.indexOf(Math.min(...steps.advantage)), episode = episodes[episodeOf(record, worst)];
  const left = episode.first + episode.n_steps - worst - 1;
  return `${better.length} of ${n} actions turned out better than the critic expected, ${worse.length} worse. The worst, Â = ${fmt(steps.advantage[worst])}: ${left === 0 ? "the next moment the pole fell" : `${count(left, "step")} before the ${episode.ended ? "pole fell" : "end of the rollout"}`}, where V(s) had promised ${fmt(steps.value[worst], 1)} more.`;
}

// The chosen step, as far as the stage knows it
function stepSays(record, stage, i) {
  const { steps } = record, e = episodeOf(record, i), episode = record.episodes[e], K = record.optimizer_steps.length;
  const what = steps.token ? `“${episode.prompt}”, token “${steps.token[i] || "end"}”` : `step ${i - episode.first + 1} of ${episode.n_steps}, pushed ${steps.action[i] ? "right" : "left"}, pole at ${fmt((steps.observation[i][2] * 180) / Math.PI, 1)}°`;
  const at = (k) => fmt(Math.exp(logProbsAfter(record, k)[i]));
  const parts = [`${steps.token ? "Answer" : "Episode"} ${e + 1}, ${what}: probability ${stage.kind === "after" ? `${at(0)} before, ${at(K)} now` : at(0)}`];
  if (stage.kind !== "rollout") parts.push(`reward ${fmt(steps.reward[i], 0)}`);
  if (steps.value && ["rollout", "advantages"].includes(stage.kind)) parts.push(`V(s) = ${fmt(steps.value[i])}`);
  if (["advantages", "ratios", "after"].includes(stage.kind)) parts.push(`Â = ${fmt(steps.advantage[i])}`);
  if (stage.kind === "ratios") {
    const now = record.optimizer_steps[stage.k], place = now.steps.indexOf(i);
    if (place >= 0 && now.advantage) parts.push(`${fmt(now.advantage[place])} normalised`);
    parts.push(`ratio ${fmt(ratioOf(record, i, stage.k), 3)}`);
    parts.push(place < 0 ? "not in this minibatch" : isCutOff(now, i) ? "cut off" : "gradient whole");
  }
  return `${parts.join(", ")}.`;
}

// Lines of the loop, and the stages in which they are at work
function loopListing(lines, stage) {
  return el("pre", { class: "listing", tabindex: "0", "aria-label": "The training loop" }, lines.map(([line, kinds]) => {
    const here = (kinds || "").split(" ").includes(stage.kind);
    return el("span", here ? { class: "here", "aria-current": "step" } : {}, here ? "▸" : " ", line, "\n");
  }));
}

const PPO_LOOP = (record) => [
  ["for iteration = 1, 2, …"],
  [" 1 play with π_old = π_θ", "rollout"],
  ["   keep s, a, log π_old(a|s), V(s)", "rollout"],
  ["   keep r", "rewards"],
  [" 2 for t = T − 1 down to 0:", "advantages"],
  ["     δ_t = r_t + γ V(s_t+1) − V(s_t)", "advantages"],
  ["     Â_t = δ_t + γλ Â_t+1", "advantages"],
  ["     G_t = Â_t + V(s_t)", "advantages"],
  [` 3 for epoch = 1 to ${record.settings.n_epochs}:`, "ratios"],
  ["    for each minibatch:", "ratios"],
  ["     Â = (Â − mean Â) / std Â", "ratios"],
  ["     r = exp(log π_θ − log π_old)", "ratios"],
  ["     L = min(r Â, clip(r, 1−ε, 1+ε) Â)", "ratios"],
  ["     loss = −mean L + c mean (V − G)²", "ratios"],
  ["     gradient step on θ and V", "ratios"],
  [" π_old ← π_θ", "after"],
];
const GRPO_LOOP = (record) => [
  ["π_ref ← π_θ"],
  ["for iteration = 1, 2, …"],
  [` 1 for each ${record.steps.token ? "prompt" : "start"}, with π_old = π_θ:`, "rollout rewards"],
  [`     sample ${record.episodes.length / record.groups.length} ${record.steps.token ? "answers" : "episodes"} o_i`, "rollout"],
  ["     keep log π_old of each action", "rollout"],
  [`     R_i = ${record.steps.token ? "verifier(o_i)" : "sum of its rewards"}`, "rewards"],
  [" 2 for each group:", "advantages"],
  ["     μ = mean(R), σ = std(R) (n − 1)", "advantages"],
  ["     Â_i = (R_i − μ) / σ at all steps", "advantages"],
  [` 3 for epoch = 1 to ${record.settings.n_epochs}:`, "ratios"],
  ["    for each minibatch:", "ratios"],
  ["     r = π_θ / π_old of each step", "ratios"],
  ["     L = min(r Â, clip(r, 1−ε, 1+ε) Â)", "ratios"],
  ["     KL = π_ref/π_θ − log π_ref/π_θ − 1", "ratios"],
  ["     loss = −mean_i mean_t (L − β KL)", "ratios"],
  ["     gradient step on θ", "ratios"],
  [" π_old ← π_θ", "after"],
];

const LOOP_CAPTIONS = {
  rollout: "Each bar is one step of the rollout, from left to right.",
  rewards: "Each bar is the reward of one step.",
  advantages: "Blue: better than expected, Â > 0. Orange: worse, Â < 0.",
  ratios: "Ratio of probabilities, new to old; dashed: 1 − ε and 1 + ε. Blue: Â > 0, orange: Â < 0, pink with ×: cut off, pale: in another minibatch. Bars beyond the scale end at its edge.",
  after: "Bars: probability after the update, dark lines: before. Blue: Â > 0, orange: Â < 0.",
};

// Forward and back, by buttons or by a slider that says where it is
const stageControl = (recordOf) => (change) => {
  let at = 1, last = 1;
  const input = el("input", { type: "range", min: 1, max: 2, step: 1, "aria-label": "Stage of the update", oninput: () => change({ at: +input.value }) });
  const output = el("output", {});
  const go = (by) => () => change({ at: Math.min(Math.max(at + by, 1), last) });
  const buttons = [el("button", { type: "button", onclick: go(-1) }, "◂ Back"), el("button", { type: "button", onclick: go(1) }, "Forward ▸")];
  return { key: "at", legal: within(1, Infinity, 1), element: el("div", { class: "stages" }, el("div", { class: "row" }, buttons, output), input), show: (state) => {
    const stages = loopStages(recordOf(state));
    last = stages.length;
    at = Math.min(Math.max(state.at, 1), last);
    Object.assign(input, { max: last, value: at });
    output.textContent = `${at} of ${last}: ${stages[at - 1].name}`;
    input.setAttribute("aria-valuetext", output.textContent);
  } };
};
const stepControl = (recordOf) => range("step", "Step or token", 1, (state) => recordOf(state).steps.reward.length, 1, 0);

function drawLoop(record, lines, state, change) {
  const stages = loopStages(record), stage = stages[Math.min(Math.max(state.at, 1), stages.length) - 1];
  const chosen = Math.min(Math.max(state.step, 1), record.steps.reward.length) - 1, what = loopSays(record, stage);
  return pictures(
    figure(loopPicture(record, stage, chosen, change, what), LOOP_CAPTIONS[stage.kind]),
    el("div", {}, says(what), el("p", { class: "note", "aria-live": "polite" }, stepSays(record, stage, chosen)), loopListing(lines(record), stage)));
}

const firstCut = DATA.update_ppo.optimizer_steps.findIndex((step) => step.below.length + step.above.length > 0);
widget("ppo-loop", {
  state: { at: 3, step: DATA.update_ppo.steps.advantage.indexOf(Math.min(...DATA.update_ppo.steps.advantage)) + 1 },
  guess: {
    question: "Two passes over two minibatches make four gradient steps. In which of them does the clip cut off a sample for the first time?",
    options: ["The first", "The second", "The third", "The fourth"],
    right: firstCut,
    state: { at: 4 + firstCut },
    because: "In the first step every ratio is 1. In the second, the other minibatch has moved only as a side effect of the first. On the second pass, samples have been pushed themselves. (The learning rate is larger than usual.)",
  },
  controls: [stageControl(() => DATA.update_ppo), stepControl(() => DATA.update_ppo)],
  draw: (state, change) => drawLoop(DATA.update_ppo, PPO_LOOP, state, change),
});

const LOOP_RUNS = { sums: DATA.update_sums, cartpole: DATA.update_grpo };
const runOf = (state) => LOOP_RUNS[state.run];
widget("grpo-loop", {
  state: { run: "sums", at: 2, step: 1 },
  guess: {
    question: "All answers of group 2 are wrong, so it is dead. Do their probabilities change in this update?",
    options: ["No: they have no gradient", "Yes: all of them fall", "Yes, with those of the others"],
    right: 2,
    state: { run: "sums", at: 8 },
    because: "R − μ is 0 for each of them, so their own clipped objective has no gradient. Their probabilities still move, because all prompts share one network. DAPO draws another group instead.",
  },
  examples: { "Sums, a small transformer": { run: "sums" }, "CartPole, a small network": { run: "cartpole" } },
  controls: [stageControl(runOf), stepControl(runOf)],
  draw: (state, change) => drawLoop(runOf(state), GRPO_LOOP, state, change),
});
