const GROUP_SCALES = { group: "of the group", batch: "of all groups together", none: "not at all (Dr. GRPO)" };
const MAX_MEMBERS = 48;

// "2, 10, 3; 0 1 1" as rows of numbers, or what is wrong with it
function parseGroups(typed) {
  const rows = typed.split(/[;/\n]/).map((row) => row.split(/[\s,]+/).filter((word) => word !== "").map((word) => Number(word.replace("−", "-")))).filter((row) => row.length);
  if (rows.flat().some((value) => !Number.isFinite(value))) return { wrong: "Numbers, please: commas within a group, a semicolon between groups." };
  if (!rows.length || rows[0].length < 2) return { wrong: "A group needs at least two members to compare." };
  if (rows.some((row) => row.length !== rows[0].length)) return { wrong: "All groups need the same number of members." };
  if (rows.flat().length > MAX_MEMBERS) return { wrong: `Up to ${MAX_MEMBERS} members, please.` };
  return { rows };
}

// The reward on the left, the advantage as a bar
function advantageBars(rows, advantages, isLive, keeps, label) {
  const width = 380, height = 24, zero = 240, reach = Math.max(...advantages.map(Math.abs), 1e-9), room = 85;
  const root = svg("svg", { role: "img", "aria-label": label });
  let y = 4, at = 0;
  rows.forEach((row, number) => {
    const dead = !isLive[number], mean = sum(row) / row.length;
    const verdict = dead ? (keeps ? "dead: dropped, another is drawn" : "all equal: dead, no gradient") : `mean ${fmt(mean)}`;
    root.append(svg("text", { x: 4, y: y + 15, class: dead ? "soft" : "" }, `Group ${number + 1}: ${verdict}`));
    y += 22;
    root.append(svg("path", { class: "axis", d: `M${zero} ${y}V${y + row.length * height}` }));
    for (const reward of row) {
      const advantage = advantages[at++], length = (Math.abs(advantage) / reach) * room;
      root.append(svg("text", { x: 104, y: y + 15, "text-anchor": "end", class: dead ? "soft" : "" }, `reward ${fmt(reward, Number.isInteger(reward) ? 0 : 1)}`));
      if (dead) root.append(svg("rect", { x: zero - 3, y: y + 3, width: 6, height: height - 8, class: "fill-grey" }));
      else root.append(svg("rect", { x: advantage < 0 ? zero - length : zero, y: y + 3, width: Math.max(length, 1), height: height - 8, class: advantage < 0 ? "fill-orange" : "fill-green" }));
      root.append(svg("text", { x: zero + (advantage < 0 ? -length - 6 : length + 6), y: y + 15, "text-anchor": advantage < 0 ? "end" : "start", class: dead ? "soft" : "" }, fmt(advantage)));
      y += height;
    }
    y += 8;
  });
  root.setAttribute("viewBox", `0 0 ${width} ${y}`);
  return root;
}

function groupSays(rows, isLive, scale, ddof, leaveOneOut, sampling) {
  const nLive = sum(isLive), size = rows[0].length;
  const divided = scale === "none" ? "not divided" : `divided by the ${ddof === "1" ? "sample" : "population"} standard deviation ${scale === "batch" ? "of the batch" : "of the group"}`;
  const compared = leaveOneOut ? `each reward minus the mean of the other ${size - 1}` : "each reward minus the mean of the group";
  const count = rows.length === 1 ? (nLive ? "The group is live" : "The group is dead: whatever the policy did, nothing was better than anything else") : `${nLive} of ${rows.length} groups are live`;
  const rest = sampling && nLive < rows.length ? `; dynamic sampling keeps ${nLive} and draws ${rows.length - nLive} anew` : "";
  return `G = ${size}. Advantage: ${compared}, ${divided}. ${count}${rest}.`;
}

widget("group", {
  state: { rewards: "2, 10, 3", ddof: "0", loo: 0, scale: "group", sampling: 0 },
  guess: {
    question: "Three answers get the rewards 10, 10 and 10. What does the policy learn from them?",
    options: ["To give all three more often", "Nothing", "It depends on the critic"],
    right: 1,
    state: { rewards: "2, 10, 3; 10, 10, 10", ddof: "0", loo: 0, scale: "group", sampling: 0 },
    because: "Each reward equals the group’s mean, so all advantages are zero: the group is dead, however good its answers are. There is no critic to ask.",
  },
  examples: {
    "3.8, 5.2, 6.1": { rewards: "3.8, 5.2, 6.1", ddof: "1", loo: 0, scale: "group", sampling: 0 },
    "Sydney 2, Canberra 10, Melbourne 3": { rewards: "2, 10, 3", ddof: "0", loo: 0, scale: "group", sampling: 0 },
    "one right of eight": { rewards: "0 0 0 1 0 0 0 0", ddof: "1", loo: 0, scale: "group", sampling: 0 },
    "verdicts of four groups": { rewards: "0 1 1 0; 1 1 1 1; 0 0 0 0; 0 0 0 1", ddof: "1", loo: 0, scale: "group", sampling: 1 },
    "10, 10, 10": { rewards: "10, 10, 10", ddof: "1", loo: 0, scale: "group", sampling: 0 },
  },
  controls: [
    text("rewards", "Rewards, with a semicolon between groups"),
    choice("ddof", "Standard deviation divides by", { 1: "G − 1 (ddof 1)", 0: "G (ddof 0)" }),
    choice("scale", "Divide by the standard deviation", GROUP_SCALES),
    tick("loo", "Leave-one-out mean"),
    tick("sampling", "Dynamic sampling"),
  ],
  draw({ rewards, ddof, loo, scale, sampling }) {
    const { rows, wrong } = parseGroups(rewards);
    if (wrong) return says(el("span", { class: "bad" }, wrong));
    const size = rows[0].length, isLive = M.live(size, ...rows.flat());
    // Dropped groups leave before the advantages are estimated
    const used = rows.filter((_, number) => isLive[number] || !sampling);
    const estimated = used.length ? M.group(size, +ddof, !!+loo, Object.keys(GROUP_SCALES).indexOf(scale), ...used.flat()) : [];
    const advantages = rows.flatMap((row, number) => (isLive[number] || !sampling ? estimated.splice(0, size) : row.map(() => 0)));
    const what = groupSays(rows, isLive, scale, ddof, +loo, +sampling);
    const values = rows.map((row, number) => `group ${number + 1}: ${row.map((_, i) => fmt(advantages[number * size + i])).join(", ")}`).join("; ");
    return pictures(
      figure(advantageBars(rows, advantages, isLive, +sampling, `Advantages of ${values}`), "Bars: advantages. Green is reinforced, orange discouraged, grey teaches nothing."),
      says(what, " ", `Advantages of ${values}.`));
  },
});
