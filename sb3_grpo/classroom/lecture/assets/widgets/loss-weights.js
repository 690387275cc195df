const AVERAGES = [["GRPO", "episode"], ["DAPO", "step"], ["Dr. GRPO", "constant"]];
const EPISODE_COLOURS = ["blue", "orange", "green", "pink", "grey"];

function parseLengths(typed) {
  const lengths = typed.split(/[\s,;]+/).filter((word) => word !== "").map(Number);
  if (!lengths.length || lengths.some((length) => !Number.isInteger(length) || length < 1 || length > 200)) return { wrong: "Lengths in whole steps from 1 to 200, please." };
  if (lengths.length > 5) return { wrong: "Up to five episodes, please." };
  return { lengths };
}

// A row for each average: every step a piece as wide as its weight
function weightBars(lengths, weights, label) {
  const width = 360, bar = 34, totals = weights.map((row) => sum(row.map((weight, i) => weight * lengths[i])));
  const scale = (width - 8) / Math.max(...totals);
  const root = svg("svg", { viewBox: `0 0 ${width} ${AVERAGES.length * 74 - 10}`, role: "img", "aria-label": label });
  AVERAGES.forEach(([name, average], row) => {
    const y = row * 74;
    root.append(svg("text", { x: 4, y: y + 16 }, `${name}, "${average}": all steps together ${fmt(totals[row])}`));
    let x = 4;
    lengths.forEach((length, episode) => {
      const step = weights[row][episode] * scale, gap = step > 3 ? 1 : 0;
      // Thin steps are drawn as one piece
      const pieces = step > 1.5 ? length : 1, each = (step * length) / pieces;
      for (let i = 0; i < pieces; i++) root.append(svg("rect", { x: x + i * each, y: y + 24, width: Math.max(each - gap, 0.5), height: bar, class: `fill-${EPISODE_COLOURS[episode]}` }));
      x += step * length;
    });
  });
  return root;
}

widget("loss-weights", {
  state: { lengths: "5, 5, 5", constant: 10 },
  guess: {
    question: "Two wrong answers, one of 10 and one of 100 tokens, have the same advantage. In DAPO, which answer as a whole is discouraged more?",
    options: ["The long one, ten times", "Both alike", "The short one, ten times"],
    right: 0,
    because: "All tokens weigh the same, and the long one has ten times as many. In GRPO both answers count alike, so each token of the long one is discouraged a tenth as much: rambling dilutes the penalty.",
    state: { lengths: "10, 100", constant: 100 },
  },
  examples: {
    "equal lengths": { lengths: "5, 5, 5", constant: 10 },
    "2, 4 and 10": { lengths: "2, 4, 10", constant: 10 },
    "10 and 100": { lengths: "10, 100", constant: 100 },
    "8, 10 and 10": { lengths: "8, 10, 10", constant: 10 },
  },
  controls: [text("lengths", "Lengths of the episodes"), range("constant", "Constant of Dr. GRPO, in steps", 1, 100, 1, 0)],
  draw({ lengths: typed, constant }) {
    const { lengths, wrong } = parseLengths(typed);
    if (wrong) return says(el("span", { class: "bad" }, wrong));
    const weights = AVERAGES.map((_, mode) => M.lossWeights(mode, constant, 200, ...lengths));
    const shortest = lengths.indexOf(Math.min(...lengths)), longest = lengths.indexOf(Math.max(...lengths));
    const times = weights[0][shortest] / weights[0][longest];
    const what = times > 1
      ? `In GRPO a step of the shortest episode weighs ${fmt(times, 1)} times as much as one of the longest. In DAPO and Dr. GRPO all steps weigh the same, so the longest episode as a whole counts ${fmt(lengths[longest] / lengths[shortest], 1)} times as much as the shortest.`
      : "With equal lengths the three averages agree, up to Dr. GRPO’s constant.";
    return [
      says(what),
      pictures(
        figure(weightBars(lengths, weights, what), "Each piece is a step, as wide as its weight; each colour an episode. Dr. GRPO’s bar has no fixed length: it grows with the episodes, the other two always add up to 1."),
        table(["Weight of a step", ...lengths.map((length) => `${length} step${length === 1 ? "" : "s"}`)], AVERAGES.map(([name], mode) => [name, ...weights[mode].map((weight) => fmt(weight, 4))]))),
    ];
  },
});
