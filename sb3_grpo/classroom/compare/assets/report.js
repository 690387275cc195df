// The curves of the page, drawn by uPlot in the place of the stills: they answer to the pointer, the keyboard and the buttons.
(() => {
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
// Without a mode, each environment has the one that its scores are of
const modes = new Set(DATA.envs.map((env) => env.mode));
const state = { x: "steps", mode: modes.size === 1 ? DATA.envs[0].mode : "", show: "intervals", scale: "raw", off: new Set() };

// Numbers
function fmt(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : Math.min(Math.max(4, 1 - Math.floor(Math.log10(size))), 8);
  return (+value.toFixed(digits)).toLocaleString("en", { maximumFractionDigits: digits }).replace("-", "−");
}
function short(value) {
  const size = Math.abs(value);
  const [divisor, unit] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  return `${+(value / divisor).toPrecision(4)}${unit}`.replace("-", "−");
}
function nearest(xs, x) {
  let best = 0;
  xs.forEach((at, i) => { if (Math.abs(at - x) < Math.abs(xs[best] - x)) best = i; });
  return best;
}
function along(xs, ys, x) {
  const next = xs.findIndex((at) => at >= x);
  if (next <= 0) return ys[next === 0 ? 0 : ys.length - 1];
  return ys[next - 1] + ((x - xs[next - 1]) / (xs[next] - xs[next - 1])) * (ys[next] - ys[next - 1]);
}

// Colours of the page's style, which knows light and dark
function colour(css) {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.className = `probe ${css}`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
const named = (name) => getComputedStyle(root).getPropertyValue(name);
function shade(name) {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = named(name);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
const faint = (rgb, alpha) => rgb.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);

// What a picture shows: {xLabel, unit, lines: [{variant, x, value, low, high, runs: [[xs, ys], ...]}], mark}
const SOURCES = {
  curves: (env) => {
    const { curves, mode, scale, threshold, unit, name } = DATA.envs[env];
    const normalised = state.scale === "normalised" && scale;
    const of = (values) => values && (normalised ? values.map((each) => each == null ? null : (each - scale[0]) / (scale[1] - scale[0])) : values);
    const over = state.x === "time";
    const lines = (curves[state.mode || mode] || []).map((line) => {
      const { x, band } = over ? line.time : line;
      const runs = line.runs.map((ys, i) => [over ? line.times[i] : line.x, of(ys)]);
      return { variant: line.variant, x, value: of(band[0]), low: of(band[1]), high: of(band[2]), runs };
    });
    const note = state.scale === "normalised" && !scale ? "not normalised: no variant is shown to have learned here" : "";
    return { name, lines, xLabel: over ? `Training time (${unit})` : "Environment steps", unit: over ? unit : "steps", mark: threshold == null ? null : of([threshold])[0], note };
  },
  diagnostics: (env, panel) => ({ name: DATA.envs[env].name, lines: DATA.envs[env].diagnostics[panel].map(plain), xLabel: "Environment steps", unit: "steps", mark: null }),
  profiles: () => ({ name: "Performance profiles", lines: DATA.profiles.map(plain), xLabel: "Normalised score τ", unit: "τ", mark: null }),
};
function plain({ variant, x, band: [value, low, high] }) { return { variant, x, value, low, high, runs: [] }; }

// Series of uPlot, with a common x: undefined is joined over, null is a gap
function series(lines) {
  const tables = [], shown = [{}], bands = [];
  for (const line of lines) {
    const stroke = colour(`v${line.variant}`), dash = DATA.variants[line.variant].dash.split(" ").filter(Boolean).map(Number);
    const single = line.runs.length && (state.show === "runs" || !line.low);
    if (single) {
      for (const run of line.runs) { tables.push(run); shown.push({ stroke: faint(stroke, 0.5), width: 1, points: { show: false } }); }
    } else if (line.low) {
      bands.push({ series: [shown.length, shown.length + 1], fill: faint(stroke, 0.2) });
      tables.push([line.x, line.high, line.low]);
      shown.push({ width: 0, stroke, points: { show: false } }, { width: 0, stroke, points: { show: false } });
    }
    tables.push([line.x, line.value]);
    shown.push({ stroke, dash, width: 2.2, points: { show: false }, main: true });
  }
  return { data: tables.length ? uPlot.join(tables) : [[]], shown, bands };
}

// What the curves are at x, in words
function reading(line, x) {
  const at = nearest(line.x, x), { name } = DATA.variants[line.variant];
  if (x < line.x[0] || (x > line.x[line.x.length - 1] && at === line.x.length - 1 && x - line.x[at] > 0.02 * (line.x[at] - line.x[0]))) return `${name} –`;
  if (state.show === "runs" && line.runs.length) {
    const values = line.runs.map(([xs, ys]) => along(xs, ys, line.x[at]));
    return `${name} ${fmt(line.value[at])} {${fmt(Math.min(...values))} … ${fmt(Math.max(...values))}}`;
  }
  return `${name} ${fmt(line.value[at])}${line.low && line.low[at] != null ? ` [${fmt(line.low[at])}, ${fmt(line.high[at])}]` : ""}`;
}

function picture(plot) {
  const [kind, ...place] = plot.dataset.live.split(" ");
  const source = () => SOURCES[kind](...place.map(Number));
  const output = document.createElement("p");
  output.className = "reading";
  let chart = null, content = null, stops = [], at = -1, drawnWidth = 0;
  plot.classList.add("live");
  plot.tabIndex = 0;
  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-label", `${plot.querySelector(".still").getAttribute("aria-label")} Arrow keys read the curves.`);
  plot.after(output);

  function tell(x) {
    const head = document.createElement("span"), words = [];
    head.className = "at";
    head.textContent = `${kind === "profiles" ? "τ = " : ""}${kind === "profiles" ? fmt(x) : content.unit === "steps" ? Math.round(x).toLocaleString("en") : fmt(x)}${kind === "profiles" ? "" : ` ${content.unit}`}:`;
    const items = content.lines.map((line) => {
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.className = `swatch v${line.variant}`;
      words.push(reading(line, x));
      item.append(swatch, words[words.length - 1]);
      return item;
    });
    output.replaceChildren(head, ...items, ...(content.note ? [content.note] : []));
    plot.setAttribute("aria-valuenow", x);
    plot.setAttribute("aria-valuetext", `${head.textContent} ${words.join(", ")}`);
  }
  function go(to) {
    at = Math.min(Math.max(to, 0), stops.length - 1);
    chart.setCursor({ left: chart.valToPos(stops[at], "x"), top: 0 });
  }
  function draw() {
    if (chart) chart.destroy();
    chart = null;
    drawnWidth = plot.clientWidth;
    content = source();
    content.lines = content.lines.filter((line) => !state.off.has(line.variant));
    stops = [...new Set(content.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    output.replaceChildren();
    if (!drawnWidth || !stops.length) return;
    const { data, shown, bands } = series(content.lines);
    const soft = shade("--soft"), line = shade("--line"), font = "12px system-ui, sans-serif";
    const axis = { stroke: soft, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, values: (_, splits) => splits.map(short) };
    const last = stops[stops.length - 1], rest = kind === "profiles" ? 0.5 : last;
    plot.setAttribute("aria-valuemin", stops[0]);
    plot.setAttribute("aria-valuemax", last);
    chart = new uPlot({
      width: drawnWidth,
      height: Math.max(plot.clientHeight, 120),
      legend: { show: false },
      scales: {
        x: { time: false, range: [stops[0], last > stops[0] ? last : stops[0] + 1] },
        y: { range: (_, low, high) => {
          const marked = content.mark == null ? [low, high] : [Math.min(low, content.mark), Math.max(high, content.mark)];
          const room = 0.04 * (marked[1] - marked[0]) || 0.04 * Math.abs(marked[1]) || 0.5;
          return [marked[0] - room, marked[1] + room];
        } },
      },
      axes: [{ ...axis, grid: { show: false }, label: content.xLabel, labelSize: 18, labelFont: font, size: 28, space: 60 }, { ...axis, size: 52, space: 32 }],
      cursor: {
        drag: { x: false, y: false, setScale: false },
        y: false,
        points: { show: (u, i) => { if (!u.series[i].main) return null; }, size: 7 },
        dataIdx: (u, i, index) => {
          const values = u.data[i];
          for (let step = 0; step < values.length; step++) {
            if (values[index - step] != null) return index - step;
            if (values[index + step] != null) return index + step;
          }
          return index;
        },
      },
      hooks: {
        setCursor: [(u) => tell(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : rest)],
        drawClear: [(u) => {
          if (content.mark == null) return;
          const y = u.valToPos(content.mark, "y", true), { ctx, bbox } = u;
          ctx.save();
          ctx.strokeStyle = soft;
          ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
          ctx.beginPath();
          ctx.moveTo(bbox.left, y);
          ctx.lineTo(bbox.left + bbox.width, y);
          ctx.stroke();
          ctx.restore();
        }],
      },
      series: shown,
      bands,
    }, data, plot);
    tell(rest);
  }
  plot.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: (at < 0 ? stops.length : at) - 1, ArrowDown: (at < 0 ? stops.length : at) - 1, Home: 0, End: stops.length - 1 }[event.key];
    if (to === undefined || !chart) return;
    go(to);
    event.preventDefault();
  });
  // Also when a fold is opened
  new ResizeObserver(() => { if (plot.clientWidth !== drawnWidth) draw(); }).observe(plot);
  return draw;
}

const redraws = [...document.querySelectorAll("[data-live]")].map(picture);
function update() {
  document.querySelectorAll("[data-set]").forEach((button) => button.setAttribute("aria-pressed", state[button.dataset.set] === button.dataset.to));
  redraws.forEach((draw) => draw());
}
document.querySelectorAll("[data-set]").forEach((button) => button.addEventListener("click", () => { state[button.dataset.set] = button.dataset.to; update(); }));
// The legend becomes a row of switches
document.querySelectorAll(".tools .legend li").forEach((item, variant) => {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  button.append(...item.childNodes);
  button.addEventListener("click", () => {
    if (!state.off.delete(variant)) state.off.add(variant);
    button.setAttribute("aria-pressed", !state.off.has(variant));
    update();
  });
  item.append(button);
});
document.querySelectorAll(".choices, .live-note, #theme").forEach((each) => { each.hidden = false; });
document.querySelectorAll(".still-note").forEach((each) => { each.hidden = true; });
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  update();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
// Moving pictures stand still on paper, and until they are asked for where motion is not wanted
document.querySelectorAll(".clip").forEach((clip) => {
  const button = clip.querySelector("button"), name = clip.querySelector("strong").textContent;
  let playing;
  const move = (on) => clip.querySelectorAll("source").forEach((source) => { source.media = on ? "all" : "not all"; });
  function play(on) {
    playing = on;
    move(on);
    button.textContent = on ? "Stop" : "Play";
    button.setAttribute("aria-label", `${button.textContent}: ${name}`);
  }
  button.hidden = false;
  button.addEventListener("click", () => play(!playing));
  addEventListener("beforeprint", () => move(false));
  addEventListener("afterprint", () => move(playing));
  play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
});
// On paper nothing is folded
let folded = [];
addEventListener("beforeprint", () => { folded = [...document.querySelectorAll("details:not([open])")]; folded.forEach((each) => { each.open = true; }); });
addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
}
addEventListener("hashchange", unfold);
unfold();
update();
window.report = { state, update };
})();
