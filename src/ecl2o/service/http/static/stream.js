// One stream: tiles, two charts and the latest steps, updated with each step.
import { Chart } from "./chart.js";
import { fillBar, formatAge, formatNumber, formatNumbers, formatReadings, formatShare, shareLeft, watchEvents } from "./format.js";

const MAX_STEPS = 256, LATEST = 12;
const data = JSON.parse(document.getElementById("data").textContent);
let steps = data.steps, { screened, stuck } = data, hindsight = { first: 1, actions: [] }, loading = false;
const actionChart = new Chart(document.getElementById("actions"), "Contexts, actions and the optimum in hindsight by step");
const costChart = new Chart(document.getElementById("costs"), "Total cost of this policy, of R-OBD, of the optimum in hindsight, and the limit of the promise");
const field = (name) => document.querySelector(`[data-field="${name}"]`);

// One line for each number of a context or an action.
function makeLines(key, name, values, stepped = false) {
  const width = Math.max(0, ...values.map((value) => value?.length ?? 0));
  return Array.from({ length: width }, (_, k) => ({ key, stepped, name: width > 1 ? `${name} ${k + 1}` : name, values: values.map((value) => value?.[k] ?? NaN) }));
}

function updateCharts() {
  const x = steps.map((step) => step.step), times = steps.map((step) => step.time);
  const best = x.map((step) => hindsight.actions[step - hindsight.first]);
  actionChart.show({
    x, times, marks: steps.filter((step) => step.guard_active).map((step) => step.step),
    lines: [...makeLines("context", "context", steps.map((step) => step.context_used.slice(0, step.action.length))), ...makeLines("optimum", "optimum", best), ...makeLines("action", "action", steps.map((step) => step.action), true)],
  });
  const curve = (key, name, value) => ({ key, name, values: steps.map((step) => value(step) ?? NaN) });
  costChart.show({
    x, times, fromZero: x[0] === 1,
    lines: [curve("promise", "promise", (step) => (step.promise_left === null ? null : step.cost + Math.max(step.promise_left, 0))), curve("expert", "R-OBD", (step) => step.expert),
      curve("optimum", "optimum", (step) => step.optimum), curve("action", "this policy", (step) => step.cost)],
  });
}

function updateTiles() {
  const last = steps[steps.length - 1];
  if (!last) return;
  const share = shareLeft(last.promise_spent);
  field("step").textContent = last.step;
  field("action").textContent = formatNumbers(last.action);
  field("cost").textContent = formatNumber(last.cost);
  field("optimum").textContent = formatNumber(last.optimum);
  field("ratio").textContent = last.optimum ? formatNumber(last.cost / last.optimum) : "–";
  field("expert").textContent = last.optimum && last.expert !== null ? formatNumber(last.expert / last.optimum) : "–";
  field("share").textContent = share === null ? "–" : formatShare(share);
  fillBar(field("bar"), share);
  updatePromises(last.promises);
  if (field("change")) {
    field("change").textContent = last.change ?? "played unchanged";
    field("advice").textContent = formatNumber(last.advice_cost);
  }
  if (field("shadow")) field("shadow").textContent = formatNumber(last.shadow_cost);
  field("guard").textContent = last.shadow_action.length ? "shadow" : last.guard_active === null ? "none" : last.guard_active ? "active" : "idle";
  field("guard").classList.toggle("on", last.guard_active === true);
  document.getElementById("tiles").classList.remove("waiting");
  field("changed").textContent = steps.filter((step) => step.guard_active).length;
  field("shown").textContent = steps.length;
  field("readings").textContent = formatReadings(screened, stuck);
  document.getElementById("latest").replaceChildren(...steps.slice(-LATEST).reverse().map(makeRow));
  updateAge();
}

function updatePromises(promises) {
  promises.forEach(({ left, spent }, index) => {
    const row = document.querySelector(`[data-promise="${index}"]`), share = shareLeft(spent);
    row.querySelector("b").textContent = share === null ? "–" : formatShare(share);
    row.querySelector(".soft").textContent = `${formatNumber(left)} units of cost`;
    fillBar(row.querySelector(".bar rect:last-child"), share);
  });
}

function makeRow(step) {
  const row = document.createElement("tr");
  const sent = step.context.every((entry) => entry === null) ? "missing" : `sent: ${formatNumbers(step.context)}`;
  const context = step.screened ? `${formatNumbers(step.context_used)} (${sent})` : formatNumbers(step.context);
  const time = step.time ? ` (${step.time.slice(0, 16).replace("T", " ")})` : "";
  const cells = [`${step.step}${time}`, step.stuck.length ? `${context} (stuck)` : context, formatNumbers(step.action), formatNumber(step.hitting), formatNumber(step.switching), step.change ?? (step.guard_active ? "changed" : "–")];
  cells.forEach((text, index) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (index < 5) cell.className = "n";
    row.append(cell);
  });
  return row;
}

const updateAge = () => { if (steps.length) field("age").textContent = formatAge(steps[steps.length - 1].at); };

async function loadHindsight() {
  if (loading) return;
  loading = true;
  try { hindsight = await (await fetch(`/streams/${data.id}/hindsight`)).json(); updateCharts(); } finally { setTimeout(() => { loading = false; }, 1500); }
}

function append(next) {
  steps = [...steps, ...next].slice(-MAX_STEPS);
  screened += next.filter((step) => step.screened).length;
  stuck += next.filter((step) => step.stuck.length).length;
  updateTiles(); updateCharts(); loadHindsight();
}

function addSteps(added) {
  const last = steps[steps.length - 1]?.step ?? 0;
  const next = added.filter((step) => step.step > last);
  if (next.length && next[0].step !== last + 1) catchUp(); else append(next);
}

async function catchUp() {
  const answer = await fetch(`/streams/${data.id}/steps?after=${steps[steps.length - 1]?.step ?? 0}&limit=10000`);
  if (answer.ok) append(await answer.json());
}

field("action").textContent = formatNumbers(data.action);
updateTiles(); updateCharts(); loadHindsight();
setInterval(updateAge, 1000);
watchEvents(`/events?stream=${encodeURIComponent(data.id)}`, addSteps, catchUp);
