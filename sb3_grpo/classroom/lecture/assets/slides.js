// The slides of the class: 1920 by 1080, as large as the window allows. Their widgets begin when they are shown.
const slides = [...document.querySelectorAll(".slide")];
const TURNS = { ArrowRight: 1, ArrowLeft: -1, PageDown: 1, PageUp: -1 };
const ENDS = { Home: 0, End: slides.length - 1 };
let shown = 0;

const presenting = () => document.body.classList.contains("presenting");

function begin(slide) {
  for (const section of slide.querySelectorAll("[data-widget]")) {
    if (section.restore) continue;
    start(section);
    section.restore(section.dataset.state);
  }
}

function zoom() {
  document.documentElement.style.setProperty("--zoom", Math.min(innerWidth / 1920, innerHeight / 1080));
}
addEventListener("resize", zoom);

function present(slide = slides[shown]) {
  shown = slides.indexOf(slide);
  document.body.classList.add("presenting");
  document.body.classList.remove("dark");
  slides.forEach((each) => each.classList.toggle("shown", each === slide));
  zoom();
  begin(slide);
  history.replaceState(null, "", `#${slide.id}`);
}

function leave() {
  document.body.classList.remove("presenting", "dark");
}

document.getElementById("present").addEventListener("click", () => present());
document.getElementById("handout").addEventListener("click", () => {
  slides.forEach(begin);
  document.body.classList.add("handout");
  print();
});
addEventListener("afterprint", () => document.body.classList.remove("handout"));

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const typing = event.target.closest && event.target.closest("input, select, textarea, [role=slider]");
  if (!presenting()) {
    if (event.key === "p" && !typing) present();
    return;
  }
  // A remote control sends page up and down, wherever the focus is
  if (typing && !event.key.startsWith("Page") && event.key !== "Escape") return;
  if (event.key === "Escape") {
    leave();
    document.getElementById("path").scrollIntoView();
    history.replaceState(null, "", "#path");
  } else if (event.key in TURNS) present(slides[Math.min(Math.max(shown + TURNS[event.key], 0), slides.length - 1)]);
  else if (event.key in ENDS) present(slides[ENDS[event.key]]);
  else if (event.key === "b" || event.key === ".") document.body.classList.toggle("dark");
  else return;
  event.preventDefault();
});
// After the mouse, the arrow keys belong to the slides again
document.getElementById("deck").addEventListener("change", (event) => { if (event.target.type !== "text") event.target.blur(); });
