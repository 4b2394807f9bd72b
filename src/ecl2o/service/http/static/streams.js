// The table of all streams, kept up to date.
import { age, figure, figures, fillBar, follow, shareLeft } from "./words.js";

const total = document.getElementById("steps"), body = document.getElementById("rows");
const find = document.getElementById("find"), order = document.getElementById("order");
const rows = () => [...document.querySelectorAll("#rows tr")];

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
  row.dataset.at = step.at;
  row.dataset.ratio = step.optimum ? step.cost / step.optimum : "";
  field("age").textContent = age(step.at);
  const share = shareLeft(step.live_ratio, Number(row.dataset.promise));
  if (field("bar") && share !== null) {
    row.dataset.share = share;
    field("none")?.remove();
    field("bar").closest("svg").classList.remove("later");
    fillBar(field("bar"), share);
    field("left").textContent = `${Math.round(share * 100)} %`;
  }
  row.classList.remove("fresh"); void row.offsetWidth; row.classList.add("fresh");
}

function tick() {
  for (const row of rows()) row.querySelector('[data-field="age"]').textContent = age(Number(row.dataset.at));
}

// What an operator looks for first, over all rows of this page.
function sum() {
  const all = rows();
  if (!all.length) return;
  const least = all.filter((row) => row.dataset.share !== "").sort((one, other) => one.dataset.share - other.dataset.share)[0];
  document.getElementById("acting").textContent = all.filter((row) => row.querySelector(".badge.on")).length;
  document.getElementById("least").textContent = least ? `${Math.round(least.dataset.share * 100)} % (${least.dataset.stream})` : "–";
}

// The order in which rows are wanted; what is not known comes last.
const worth = {
  share: (row) => (row.dataset.share === "" ? Infinity : Number(row.dataset.share)),
  ratio: (row) => (row.dataset.ratio === "" ? Infinity : -Number(row.dataset.ratio)),
  at: (row) => (row.dataset.at === "" ? Infinity : Number(row.dataset.at)),
};

function arrange() {
  const wanted = find.value.trim().toLowerCase(), key = worth[order.value];
  const by = (one, other) => (key ? key(one) - key(other) || 0 : 0) || (one.dataset.stream < other.dataset.stream ? -1 : 1);
  const sorted = rows().sort(by);
  for (const row of sorted) row.hidden = !row.dataset.text.toLowerCase().includes(wanted);
  body.append(...sorted);
  document.getElementById("none").hidden = sorted.some((row) => !row.hidden);
}

function heard(steps) {
  let unknown = false;
  for (const step of steps) {
    const row = document.getElementById(`row-${step.stream}`);
    if (row) show(row, step); else unknown = true;
  }
  total.textContent = Number(total.dataset.steps).toLocaleString("en").replaceAll(",", "\u202f");
  sum();
  // A stream that is not in the table yet: look again, but not at every step of a stream of another page.
  if (unknown && Date.now() - opened > 5000 && !location.search) location.reload();
}

const opened = Date.now();
for (const bar of document.querySelectorAll('[data-field="bar"]')) fillBar(bar, Number(bar.getAttribute("width")) / 100);
tick();
sum();
setInterval(tick, 1000);
for (const [field, kind] of [[find, "input"], [order, "change"]]) field?.addEventListener(kind, arrange);
follow("/events", heard, () => location.reload());
