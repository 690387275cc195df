// Exercises judge themselves. What was right makes a line of text that a student hands in, and a lecturer collects.
const PASS_MARK = 0.6;
const EXERCISES = [...document.querySelectorAll(".exercise")];

// Where a browser keeps nothing for a file, results last as long as the page
const memory = {
  read(key) { try { return localStorage.getItem(`sb3-grpo lecture ${key}`); } catch { return null; } },
  write(key, value) { try { localStorage.setItem(`sb3-grpo lecture ${key}`, value); } catch { /* not kept */ } },
};
const solved = new Set((memory.read("solved") || "").split(" ").filter((id) => document.getElementById(id)));

function parse(text) {
  const number = text.trim().replace("\u2212", "-").replace(",", ".");
  return number === "" ? NaN : Number(number);
}

function judge(form) {
  const output = form.querySelector("output"), input = form.querySelector("input");
  if (solved.has(form.id)) { output.className = "good"; output.textContent = "Right, answered earlier."; }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const value = parse(input.value);
    if (!Number.isFinite(value)) { output.className = "bad"; output.textContent = "Enter a number, such as \u22121.06."; return; }
    const right = Math.abs(value - Number(form.dataset.answer)) <= Number(form.dataset.tolerance);
    output.className = right ? "good" : "bad";
    output.textContent = right ? "Right." : "Not yet.";
    if (right) { solved.add(form.id); memory.write("solved", [...solved].join(" ")); report(); }
  });
}

// "sb3-grpo lecture; Ada; 3 of 8; clip-negative group-mean": everything that a table needs
// Those of the notebooks are alike
const LINE = /^sb3-grpo ([^;]*); (.*); (\d+) of (\d+);(.*)$/;
function line(name) {
  const names = EXERCISES.map((form) => form.id).filter((id) => solved.has(id)).map((id) => id.replace("exercise-", ""));
  return `sb3-grpo lecture; ${name.replaceAll(";", ",").trim() || "?"}; ${names.length} of ${EXERCISES.length}; ${names.join(" ")}`;
}

function report() {
  const needed = Math.ceil(PASS_MARK * EXERCISES.length), n = EXERCISES.filter((form) => solved.has(form.id)).length;
  document.getElementById("score").textContent = `${n} of ${EXERCISES.length} exercises are right; ${n >= needed ? "passed" : `${needed} needed to pass`}.`;
  document.getElementById("line").textContent = line(document.getElementById("student").value);
}

// The lecturer's side: lines in, a table out
function collect(lines) {
  const rows = lines.split("\n").map((each) => each.trim().match(LINE)).filter(Boolean)
    .map(([, of, student, n, all, names]) => ({ of, student, n: +n, all: +all, names: names.trim().split(" ").filter(Boolean) }));
  if (!rows.length) return note("No lines yet.");
  const passed = (row) => row.n >= PASS_MARK * row.all;
  // Every exercise of this page, also the unsolved ones, and what the notebooks' lines name
  const solvers = new Map(EXERCISES.map((form) => [`lecture: ${form.id.replace("exercise-", "")}`, 0]));
  for (const row of rows) for (const name of row.names) solvers.set(`${row.of}: ${name}`, (solvers.get(`${row.of}: ${name}`) || 0) + 1);
  return el("div", {},
    el("p", {}, `${rows.length} lines, ${rows.filter(passed).length} passed.`),
    table(["student", "exercises from", "right", "passed"], rows.map((row) => [row.student, row.of, `${row.n} of ${row.all}`, passed(row) ? "yes" : "no"])),
    table(["exercise", "students who solved it"], [...solvers]));
}

function startClass() {
  const student = document.getElementById("student"), lines = document.getElementById("lines");
  student.value = memory.read("student") || "";
  student.addEventListener("input", () => { memory.write("student", student.value); report(); });
  lines.addEventListener("input", () => document.getElementById("class-table").replaceChildren(collect(lines.value)));
  document.getElementById("class-table").append(collect(""));
  report();
}
