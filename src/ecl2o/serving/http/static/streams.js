// The table of all streams, kept up to date.
import { age, figure, figures, fillBar, follow, shareLeft } from "./words.js";

const total = document.getElementById("steps");

function show(row, step) {
  const field = (name) => row.querySelector(`[data-field="${name}"]`);
  total.dataset.steps = Number(total.dataset.steps) + Math.max(step.step - Number(row.dataset.steps), 0);
  row.dataset.steps = step.step;
  field("steps").textContent = step.step;
  field("action").textContent = figures(step.action);
  field("cost").textContent = figure(step.cost);
  field("ratio").textContent = step.optimum ? `${figure(step.cost / step.optimum)} ×` : "–";
  field("guard").textContent = step.guard_active === null ? "–" : step.guard_active ? "acting" : "idle";
  field("guard").classList.toggle("on", step.guard_active === true);
  field("age").dataset.at = step.at;
  field("age").textContent = age(step.at);
  const share = shareLeft(step.live_ratio, Number(row.dataset.promise));
  if (field("bar") && share !== null) {
    fillBar(field("bar"), share);
    field("left").textContent = `${Math.round(share * 100)} %`;
  }
  row.classList.remove("fresh"); void row.offsetWidth; row.classList.add("fresh");
}

function tick() {
  for (const cell of document.querySelectorAll('[data-field="age"]')) cell.textContent = age(Number(cell.dataset.at));
}

function heard(steps) {
  let unknown = false;
  for (const step of steps) {
    const row = document.getElementById(`row-${step.stream}`);
    if (row) show(row, step); else unknown = true;
  }
  total.textContent = Number(total.dataset.steps).toLocaleString("en").replaceAll(",", "\u202f");
  // A stream that is not in the table yet: look again, but not at every step of a stream of another page.
  if (unknown && Date.now() - opened > 5000 && !location.search) location.reload();
}

const opened = Date.now();
for (const bar of document.querySelectorAll('[data-field="bar"]')) fillBar(bar, Number(bar.getAttribute("width")) / 100);
tick();
setInterval(tick, 1000);
follow("/events", heard, () => location.reload());
