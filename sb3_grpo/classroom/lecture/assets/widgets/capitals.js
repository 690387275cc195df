// A small transformer learns capitals from a verifier: what benchmarks/lecture_capitals.py recorded.
const CAPITAL_COLOURS = ["green", "orange", "pink"];
const capitalCountries = [...new Set(DATA.capitals.asked.map(([country]) => country))];
const percentOf = (share) => `${fmt(100 * share, share < 0.1 ? 1 : 0)}%`;

// The answers whose probabilities were followed, the right one first
const capitalAnswers = (country) => DATA.capitals.asked.map(([of, answer], column) => ({ of, answer, column })).filter(({ of }) => of === country);

function capitalCurves(country) {
  const answers = capitalAnswers(country), last = DATA.capitals.chances.length - 1;
  const shares = answers.map(({ answer, column }) => `${answer} ${percentOf(DATA.capitals.chances[0][column])}, then ${percentOf(DATA.capitals.chances[last][column])}`).join("; ");
  const p = plot({ x: [0, last], y: [0, 1], label: `Probability of an answer, before and after: ${shares}.`, xLabel: "updates", yLabel: "probability" });
  answers.forEach(({ column }, i) => p.line(DATA.capitals.chances.map((row, x) => [x, row[column]]), CAPITAL_COLOURS[i]));
  return figure(p, `What it answers. ${answers.map(({ answer }, i) => `${["Green", "Orange", "Pink"][i]}: ${answer}.`).join(" ")}`);
}

function capitalShares() {
  const last = DATA.capitals.mean[0].length - 1;
  const p = plot({ x: [0, last], y: [0, 1], label: `Probability of a right answer at the end: all questions ${percentOf(DATA.capitals.mean[0][last])}, the difficult ones ${percentOf(DATA.capitals.mean[1][last])}.`, xLabel: "updates", yLabel: "probability", height: 300 });
  ["blue", "orange"].forEach((colour, which) => {
    DATA.capitals.right[which].forEach((curve) => p.line(curve.map((value, x) => [x, value]), `${colour} thin`));
    p.line(DATA.capitals.mean[which].map((value, x) => [x, value]), colour);
  });
  return figure(p, "Probability of a right answer, mean over questions. Blue: all 46. Orange: the 11 whose capital is not the largest city. Thick: mean of three seeds, thin: each seed.");
}

widget("capitals", {
  state: { country: capitalCountries[0] },
  guess: {
    question: "“Paris” is right and has probability 95% before training. What does it gain?",
    options: ["It becomes certain", "Hardly anything"],
    right: 1,
    state: { country: "France" },
    because: "Nearly all members of its groups are right. Most of these groups are dead, and in the others the advantage of a right answer is small. Meanwhile, updates for other questions move the network that all questions share.",
  },
  controls: [choice("country", "Question: the capital of", Object.fromEntries(capitalCountries.map((country) => [country, country])))],
  draw({ country }) {
    const { answer, column } = capitalAnswers(country)[0], { chances } = DATA.capitals;
    const what = `“What is the capital of ${country}?” “${answer}” has probability ${percentOf(chances[0][column])} before and ${percentOf(chances.at(-1)[column])} after ${chances.length - 1} updates.`;
    return [says(what), pictures(capitalCurves(country), capitalShares()), madeBy(DATA.capitals.made)];
  },
});
