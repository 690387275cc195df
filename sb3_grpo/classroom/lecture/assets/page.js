// The page: widgets begin, the address is followed, symbols say what they mean.
const sections = [...document.querySelectorAll("main [data-widget]")];
sections.forEach(start);
EXERCISES.forEach(judge);
startClass();
document.getElementById("demo-index").append(...sections.map((section) => el("li", {}, el("a", { href: `#${section.id}` }, section.getAttribute("aria-label")))));

function follow() {
  const [, name, query] = location.hash.match(/^#([^?]*)(?:\?(.*))?$/s) || [];
  const section = name && document.getElementById(name);
  if (!section) return;
  if (section.matches(".slide")) { present(section); return; }
  leave();
  if (query && section.restore) section.restore(query);
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

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
window.lecture = { WIDGETS };
follow();
