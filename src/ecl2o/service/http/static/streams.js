// The table of all streams, updated with each step.
import { fillBar, formatAge, formatCount, formatNumber, formatNumbers, formatReadings, formatShare, shareLeft, watchEvents } from "./format.js";

const total = document.getElementById("steps"), body = document.getElementById("rows");
const find = document.getElementById("find"), order = document.getElementById("order");
const rows = () => [...document.querySelectorAll("#rows tr")];

function updateRow(row, step) {
  const field = (name) => row.querySelector(`[data-field="${name}"]`);
  const fresh = Math.max(step.step - Number(row.dataset.steps), 0);
  total.dataset.steps = Number(total.dataset.steps) + fresh;
  row.dataset.steps = step.step;
  if (fresh && step.screened) row.dataset.screened = Number(row.dataset.screened) + 1;
  if (fresh && step.stuck.length) row.dataset.stuck = Number(row.dataset.stuck) + 1;
  field("readings").textContent = formatReadings(Number(row.dataset.screened), Number(row.dataset.stuck));
  field("steps").textContent = step.step;
  field("action").textContent = formatNumbers(step.action);
  field("cost").textContent = formatNumber(step.cost);
  field("ratio").textContent = step.optimum ? `${formatNumber(step.cost / step.optimum)}\u202f×` : "–";
  field("guard").textContent = step.guard_active === null ? "–" : step.guard_active ? "active" : "idle";
  field("guard").classList.toggle("on", step.guard_active === true);
  row.dataset.at = step.at;
  row.dataset.ratio = step.optimum ? step.cost / step.optimum : "";
  field("age").textContent = formatAge(step.at);
  const share = shareLeft(step.promise_spent);
  if (field("bar") && share !== null) {
    row.dataset.share = share;
    field("none")?.remove();
    field("bar").closest("svg").classList.remove("later");
    fillBar(field("bar"), share);
    field("left").textContent = formatShare(share);
  }
  row.classList.remove("fresh"); void row.offsetWidth; row.classList.add("fresh");
}

function updateAges() {
  for (const row of rows()) row.querySelector('[data-field="age"]').textContent = formatAge(Number(row.dataset.at));
}

// What an operator looks for first, over all rows of this page.
function updateSummary() {
  const all = rows();
  if (!all.length) return;
  const least = all.filter((row) => row.dataset.share !== "").sort((one, other) => one.dataset.share - other.dataset.share)[0];
  document.getElementById("active").textContent = all.filter((row) => row.querySelector(".badge.on")).length;
  document.getElementById("least").textContent = least ? `${formatShare(least.dataset.share)} (${least.dataset.stream})` : "–";
}

// Sort keys; unknown values come last.
const sortKey = {
  share: (row) => (row.dataset.share === "" ? Infinity : Number(row.dataset.share)),
  ratio: (row) => (row.dataset.ratio === "" ? Infinity : -Number(row.dataset.ratio)),
  at: (row) => (row.dataset.at === "" ? Infinity : Number(row.dataset.at)),
};

function filterAndSort() {
  const wanted = find.value.trim().toLowerCase(), key = sortKey[order.value];
  const by = (one, other) => (key ? key(one) - key(other) || 0 : 0) || (one.dataset.stream < other.dataset.stream ? -1 : 1);
  const sorted = rows().sort(by);
  for (const row of sorted) row.hidden = !row.dataset.text.toLowerCase().includes(wanted);
  body.append(...sorted);
  document.getElementById("none").hidden = sorted.some((row) => !row.hidden);
}

function addSteps(steps) {
  let unknown = false;
  for (const step of steps) {
    const row = document.getElementById(`row-${step.stream}`);
    if (row) updateRow(row, step); else unknown = true;
  }
  total.textContent = formatCount(Number(total.dataset.steps));
  updateSummary();
  // A new stream: reload the table, at most every five seconds, and only on the first page.
  if (unknown && Date.now() - opened > 5000 && !location.search) location.reload();
}

const opened = Date.now();
const lastSteps = JSON.parse(document.getElementById("data")?.textContent ?? "[]");
rows().forEach((row, index) => {
  row.querySelector('[data-field="action"]').textContent = formatNumbers(row.dataset.action.split(",").map(Number));
  if (lastSteps[index]) updateRow(row, lastSteps[index]);
  row.classList.remove("fresh");
});
updateAges();
updateSummary();
setInterval(updateAges, 1000);
for (const [field, kind] of [[find, "input"], [order, "change"]]) field?.addEventListener(kind, filterAndSort);
watchEvents("/events", addSteps, () => location.reload());
