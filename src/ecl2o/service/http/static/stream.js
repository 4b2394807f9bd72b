// One stream: tiles, two charts and the latest steps, kept up to date.
import { Chart } from "./chart.js";
import { age, figure, figures, fillBar, follow, shareLeft } from "./words.js";

const MOST = 256, LATEST = 12;
const data = JSON.parse(document.getElementById("data").textContent);
let steps = data.steps, hindsight = { first: 1, actions: [] }, asked = false;
const path = new Chart(document.getElementById("path"), "Contexts, actions and the hindsight optimum by step");
const bill = new Chart(document.getElementById("bill"), "Bill so far of this policy, of R-OBD and in hindsight, and what the promise allows");
const place = (name) => document.querySelector(`[data-figure="${name}"]`);

// Numbers of a context or an action each have a line.
function lines(key, name, values, stepped = false) {
  const width = Math.max(0, ...values.map((value) => value?.length ?? 0));
  return Array.from({ length: width }, (_, k) => ({ key, stepped, name: width > 1 ? `${name} ${k + 1}` : name, values: values.map((value) => value?.[k] ?? NaN) }));
}

function charts() {
  const x = steps.map((step) => step.step);
  const best = x.map((step) => hindsight.actions[step - hindsight.first]);
  path.show({
    x, marks: steps.filter((step) => step.guard_active).map((step) => step.step),
    lines: [...lines("context", "context", steps.map((step) => (step.context_used ?? step.context).slice(0, step.action.length))), ...lines("optimum", "hindsight", best), ...lines("action", "action", steps.map((step) => step.action), true)],
  });
  const curve = (key, name, value) => ({ key, name, values: steps.map((step) => value(step) ?? NaN) });
  bill.show({
    x, fromZero: x[0] === 1,
    lines: [curve("promise", "promise", (step) => (step.promise_left === null ? null : step.cost + Math.max(step.promise_left, 0))), curve("expert", "R-OBD", (step) => step.expert),
      curve("optimum", "hindsight", (step) => step.optimum), curve("action", "this policy", (step) => step.cost)],
  });
}

function tiles() {
  const last = steps[steps.length - 1];
  if (!last) return;
  const share = shareLeft(last.live_ratio, data.promise?.ratio);
  place("step").textContent = last.step;
  place("action").textContent = figures(last.action);
  place("cost").textContent = figure(last.cost);
  place("optimum").textContent = figure(last.optimum);
  place("ratio").textContent = last.optimum ? figure(last.cost / last.optimum) : "–";
  place("expert").textContent = last.optimum && last.expert !== null ? figure(last.expert / last.optimum) : "–";
  place("share").textContent = share === null ? "–" : `${Math.round(share * 100)} %`;
  fillBar(place("bar"), share);
  place("guard").textContent = last.guard_active === null ? "none" : last.guard_active ? "acting" : "idle";
  place("guard").classList.toggle("on", last.guard_active === true);
  document.getElementById("tiles").classList.remove("waiting");
  place("acted").textContent = steps.filter((step) => step.guard_active).length;
  place("shown").textContent = steps.length;
  document.getElementById("latest").replaceChildren(...steps.slice(-LATEST).reverse().map(row));
  tick();
}

function row(step) {
  const made = document.createElement("tr");
  const cells = [step.step, step.screened ? `${figures(step.context_used)} (not ${step.context.every((entry) => entry === null) ? "sent" : figures(step.context)})` : figures(step.context), figures(step.action), figure(step.hitting), figure(step.switching), step.guard_active ? "acted" : "–"];
  cells.forEach((text, index) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (index < 5) cell.className = "n";
    made.append(cell);
  });
  return made;
}

const tick = () => { if (steps.length) place("age").textContent = age(steps[steps.length - 1].at); };

async function look() {
  if (asked) return;
  asked = true;
  try { hindsight = await (await fetch(`/streams/${data.id}/hindsight`)).json(); charts(); } finally { setTimeout(() => { asked = false; }, 1500); }
}

function heard(fresh) {
  const last = steps[steps.length - 1]?.step ?? 0;
  const next = fresh.filter((step) => step.step > last);
  if (next.length && next[0].step !== last + 1) { catchUp(); return; }
  steps = [...steps, ...next].slice(-MOST);
  tiles(); charts(); look();
}

async function catchUp() {
  const answer = await fetch(`/streams/${data.id}/steps?after=${steps[steps.length - 1]?.step ?? 0}&limit=10000`);
  if (answer.ok) { steps = [...steps, ...(await answer.json())].slice(-MOST); tiles(); charts(); look(); }
}

tiles(); charts(); look();
setInterval(tick, 1000);
follow(`/events?stream=${encodeURIComponent(data.id)}`, heard, catchUp);
