// The page: widgets begin, the address is followed, symbols say what they mean, chapters become slides.
const sections = [...document.querySelectorAll("[data-widget]")];
sections.forEach(start);
EXERCISES.forEach(judge);
startClass();
document.getElementById("demo-index").append(...sections.map((section) => el("li", {}, el("a", { href: `#${section.id}` }, section.getAttribute("aria-label")))));

function follow() {
  const [, name, query] = location.hash.match(/^#([^?]*)(?:\?(.*))?$/s) || [];
  const section = name && document.getElementById(name);
  if (!section) return;
  if (query && section.restore) section.restore(query);
  if (presenting()) show(section.closest(".chapter"), section.closest(".part"));
  section.scrollIntoView();
}
addEventListener("hashchange", follow);

// What a symbol means, where the pointer or the focus is
const meaning = document.getElementById("meaning");
function explain(event) {
  const symbol = event.target.closest && event.target.closest(".symbol");
  if (!symbol) { meaning.hidden = true; return; }
  const box = symbol.getBoundingClientRect();
  meaning.innerHTML = symbol.dataset.meaning;
  meaning.hidden = false;
  const left = Math.min(box.left + scrollX, scrollX + document.documentElement.clientWidth - meaning.offsetWidth - 8);
  meaning.style.left = `${Math.max(left, scrollX + 8)}px`;
  meaning.style.top = `${box.bottom + scrollY + 6}px`;
}
for (const kind of ["mouseover", "focusin", "click"]) document.addEventListener(kind, explain);

// Slides: one chapter, one part of it at a time
const chapters = [...document.querySelectorAll(".chapter")];
const presenting = () => document.body.classList.contains("presenting");
const slides = chapters.flatMap((chapter) => {
  const parts = [...chapter.querySelectorAll(":scope > .part")];
  return parts.length ? parts.map((part) => [chapter, part]) : [[chapter, null]];
});
const TURNS = { ArrowRight: 1, ArrowLeft: -1, PageDown: 1, PageUp: -1 };
let shown = 0;
function show(chapter, part) {
  const at = slides.findIndex(([c, p]) => c === chapter && (!part || p === part));
  shown = at < 0 ? 0 : at;
  document.querySelectorAll(".shown").forEach((each) => each.classList.remove("shown"));
  slides[shown].forEach((each) => each && each.classList.add("shown"));
  document.getElementById("number").textContent = `${shown + 1} of ${slides.length}`;
  fit();
  scrollTo(0, 0);
}
// Whatever the fonts and the screen: a slide that is too tall becomes smaller. One that would be too small to read scrolls
const SMALLEST = 0.7;
function fit() {
  const main = document.querySelector("main"), { documentElement: root } = document;
  let zoom = 1;
  main.style.zoom = zoom;
  if (!presenting()) return;
  while (root.scrollHeight > root.clientHeight && zoom > SMALLEST) main.style.zoom = zoom -= 0.02;
  if (root.scrollHeight > root.clientHeight) main.style.zoom = 1;
}
addEventListener("resize", fit);
function present(on) {
  // What is at the top of the window now
  const place = slides.find(([chapter, part]) => (part || chapter).getBoundingClientRect().bottom > innerHeight / 4) || slides[0];
  document.body.classList.toggle("presenting", on);
  document.getElementById("present").setAttribute("aria-pressed", on);
  document.getElementById("number").hidden = !on;
  if (on) { show(...place); return; }
  fit();
  slides[shown].filter(Boolean).at(-1).scrollIntoView();
}
document.getElementById("present").addEventListener("click", () => present(!presenting()));
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const busy = event.target.closest && event.target.closest("input, select, textarea, [role=slider], summary");
  if (event.key === "p" && !busy && !presenting()) present(true);
  if (!presenting()) return;
  if (event.key === "Escape") present(false);
  else if (!busy && event.key in TURNS) {
    // A remote control sends page up and down: on a slide that is taller than the screen they scroll first
    const { scrollTop, scrollHeight, clientHeight } = document.documentElement;
    const by = TURNS[event.key], more = by > 0 ? scrollTop + clientHeight < scrollHeight - 2 : scrollTop > 2;
    if (event.key.startsWith("Page") && more) return;
    show(...slides[Math.min(Math.max(shown + by, 0), slides.length - 1)]);
    event.preventDefault();
  }
});

window.lecture = { WIDGETS };
follow();
