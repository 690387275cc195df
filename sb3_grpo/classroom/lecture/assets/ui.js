// Elements, plots and controls that widgets are made of.
const DATA = JSON.parse(document.getElementById("data").textContent);
const WIDGETS = {};

function make(space, tag, attributes, children) {
  const element = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat(9).filter((child) => child != null));
  return element;
}
const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
const svg = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);

// What widgets are made of: a sentence that is read out where it changes, drawings with captions side by side, tables
const says = (...parts) => el("p", { class: "says", "aria-live": "polite" }, parts);
const note = (...parts) => el("p", { class: "note" }, parts);
const pictures = (...parts) => el("div", { class: "pictures" }, parts);
const figure = (drawing, ...caption) => el("figure", {}, drawing.root || drawing, el("figcaption", {}, caption));
const key = (colour) => el("span", { class: `key key-${colour}` });
const head = (names) => el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col" }, name))));
// The first cell of each row is its name
const row = ([name, ...cells], attributes) => el("tr", attributes, el("th", { scope: "row" }, name), cells.map((cell) => el("td", {}, cell)));
const table = (names, rows, caption) => el("table", {}, caption && el("caption", {}, caption), names && head(names), el("tbody", {}, rows.map((each) => (Array.isArray(each) ? row(each) : each))));

// A number as people write it: no -0, no digits that say nothing
function fmt(value, digits = 2) {
  const text = (Math.abs(value) < 0.5 * 10 ** -digits ? 0 : value).toFixed(digits);
  return text.replace("-", "−");
}

function ticks([low, high], n = 5) {
  const rough = (high - low) / n, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => +((first + i) * step).toPrecision(12));
}

// A drawing with axes. Lines break where a value is not finite
function plot({ x, y, label, xLabel, yLabel, width = 460, height = 300 }) {
  const left = 70, right = 12, top = 12, bottom = 44;
  const X = (value) => left + ((value - x[0]) / (x[1] - x[0])) * (width - left - right);
  const Y = (value) => height - bottom - ((value - y[0]) / (y[1] - y[0])) * (height - top - bottom);
  const root = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const at of ticks(y)) {
    root.append(svg("path", { class: "grid", d: `M${left} ${Y(at)}H${width - right}` }));
    root.append(svg("text", { x: left - 7, y: Y(at) + 4, "text-anchor": "end", class: "soft" }, String(at).replace("-", "−")));
  }
  for (const at of ticks(x)) {
    root.append(svg("text", { x: X(at), y: height - bottom + 18, "text-anchor": "middle", class: "soft" }, String(at).replace("-", "−")));
  }
  root.append(svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
  if (y[0] < 0 && y[1] > 0) root.append(svg("path", { class: "axis", d: `M${left} ${Y(0)}H${width - right}` }));
  root.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel));
  root.append(svg("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, yLabel));
  const inside = (points) => points.map(([px, py]) => [X(px), Y(Math.min(Math.max(py, y[0]), y[1]))]);
  return {
    root, X, Y,
    line(points, className) {
      let path = "", pen = "M";
      for (const [px, py] of points) {
        if (!Number.isFinite(py)) pen = "M";
        else { const [[sx, sy]] = inside([[px, py]]); path += `${pen}${sx.toFixed(1)} ${sy.toFixed(1)}`; pen = "L"; }
      }
      root.append(svg("path", { class: `line ${className}`, d: path }));
    },
    band(points, className) {
      const corners = [...inside(points.map(([px, low]) => [px, low])), ...inside(points.map(([px, , high]) => [px, high])).reverse()];
      root.append(svg("polygon", { class: `band fill-${className}`, points: corners.map((c) => c.map((v) => v.toFixed(1)).join()).join(" ") }));
    },
    dot(px, py, className, r = 6) {
      const [[sx, sy]] = inside([[px, py]]);
      root.append(svg("circle", { cx: sx, cy: sy, r, class: `fill-${className}` }));
    },
    vertical(px, className) { root.append(svg("path", { class: `line dashed ${className}`, d: `M${X(px)} ${top}V${height - bottom}` })); },
  };
}

// Where recorded numbers come from
const madeBy = ({ seeds, command, cpu, cores, versions }) => el("p", { class: "note made" }, `Recorded by ${command}: seeds ${seeds.join(", ")}; ${cpu}, ${cores} cores; torch ${versions.torch}, Stable-Baselines3 ${versions.stable_baselines3}, sb3-grpo ${versions.sb3_grpo}.`);

// Controls: each knows how to show the state, tells of changes, and which value an address may give it
// The upper end of a range may depend on the state
const range = (key, label, low, high, step, digits = 2) => (change) => {
  const input = el("input", { type: "range", min: low, step, oninput: () => change({ [key]: +input.value }) });
  const output = el("output", {}), top = typeof high === "function" ? high : () => high;
  return { key, legal: within(low, typeof high === "function" ? Infinity : high, step), element: labelled(label, output, input), show: (state) => {
    Object.assign(input, { max: top(state), value: state[key] });
    output.textContent = fmt(Math.min(state[key], top(state)), digits);
    input.setAttribute("aria-valuetext", output.textContent);
  } };
};
// Whole steps stay whole; a finer value than the control has is fine
const within = (low, high, step) => (typed) => {
  const value = typed.trim() === "" ? NaN : Number(typed.replace("\u2212", "-"));
  if (!Number.isFinite(value)) return undefined;
  return Math.min(Math.max(Number.isInteger(step) ? low + Math.round((value - low) / step) * step : value, low), high);
};
const labelled = (label, ...inputs) => el("label", {}, el("span", {}, label), inputs);
const choice = (key, label, options) => (change) => {
  const select = el("select", { onchange: () => change({ [key]: select.value }) }, Object.entries(options).map(([value, text]) => el("option", { value }, text)));
  return { key, legal: (typed) => (Object.hasOwn(options, typed) ? typed : undefined), element: labelled(label, select), show: (state) => { select.value = state[key]; } };
};
const tick = (key, label) => (change) => {
  const input = el("input", { type: "checkbox", onchange: () => change({ [key]: +input.checked }) });
  return { key, legal: (typed) => (["0", "1"].includes(typed) ? +typed : undefined), element: labelled(label, input), show: (state) => { input.checked = !!state[key]; } };
};
const text = (key, label) => (change) => {
  const input = el("input", { type: "text", oninput: () => change({ [key]: input.value }) });
  return { key, legal: (typed) => typed, element: labelled(label, input), show: (state) => { if (document.activeElement !== input) input.value = state[key]; } };
};

// A widget: what it is at first, its controls, examples to choose, a question to guess at, and draw(state, change), which
// returns elements.
function widget(name, definition) { WIDGETS[name] = definition; }

function guess({ question, options, right, state, because }, change) {
  const verdict = el("p", { "aria-live": "polite" });
  const buttons = options.map((option, i) => el("button", { type: "button", onclick: () => {
    verdict.replaceChildren(el("span", { class: i === right ? "good" : "bad" }, i === right ? "Yes. " : "No. "), because);
    if (state) change(state);
  } }, option));
  return el("div", { class: "guess" }, el("p", {}, el("strong", {}, "Guess first. "), question), el("div", { class: "row" }, buttons), verdict);
}

// Where no control has it: a value that one of the examples has
const exemplary = (definition, key) => (typed) => Object.values(definition.examples || {}).map((of) => of[key]).find((value) => String(value) === typed);

function start(section) {
  const name = section.dataset.widget, definition = WIDGETS[name];
  let state = { ...definition.state };
  const picture = el("div", {});
  const change = (part, quiet) => {
    state = { ...state, ...part };
    controls.forEach((control) => control.show(state));
    picture.replaceChildren(...[definition.draw(state, change)].flat(9));
    examples.forEach(([button, of]) => button.setAttribute("aria-pressed", Object.entries(of).every(([key, value]) => state[key] === value)));
    // The address of a slide is the slide's
    if (!quiet && !section.closest(".slide")) history.replaceState(null, "", `#${name}?${new URLSearchParams(state)}`);
  };
  const controls = (definition.controls || []).map((control) => control(change));
  const examples = Object.entries(definition.examples || {}).map(([label, of]) => [el("button", { type: "button", onclick: () => change(of) }, label), of]);
  section.append(
    el("div", { class: "ask" },
      definition.guess ? guess(definition.guess, change) : "",
      examples.length ? el("div", { class: "row" }, el("span", {}, "Examples:"), examples.map(([button]) => button)) : ""),
    picture,
    el("div", { class: "controls" }, controls.map((control) => control.element)),
  );
  change({}, true);
  // A state from the address: what a control could not give is left out
  section.restore = (query) => {
    const part = {};
    for (const [key, typed] of new URLSearchParams(query)) {
      const legal = Object.hasOwn(definition.state, key) && (controls.find((control) => control.key === key) || { legal: exemplary(definition, key) }).legal(typed);
      if (legal !== undefined && legal !== false) part[key] = legal;
    }
    change(part, true);
  };
}
