// Formatting of numbers, ages and bars, explanations, and the connection to /events.

const SPACE = "\u202f", MINUS = "\u2212"; // a line never breaks at either
const DIGITS = 4; // at least
const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"]];

// What to divide by, and what to write after the number: M, G or T from `plain` on, a power of ten where there are too many zeros.
function chooseUnit(size, plain = 1e6) {
  if (size >= 1e-4 && size < plain) return [1, ""];
  if (size >= plain && size < 1e15) { const [scale, unit] = UNITS.find(([least]) => size >= least); return [scale, SPACE + unit]; }
  const power = Math.max(Math.floor(Math.log10(size)), -300);
  return [10 ** power, `e${power < 0 ? MINUS : ""}${Math.abs(power)}`];
}

function writeNumber(value, [scale, unit], decimals, strip) {
  let text = Math.abs(value / scale).toFixed(Math.min(Math.max(decimals, 0), 20));
  if (strip && text.includes(".")) text = text.replace(/\.?0+$/, "");
  return (value < 0 ? MINUS : "") + text.replace(/\B(?=(\d{3})+(\.|$))(?<!\..*)/g, SPACE) + unit;
}

const powerOf = (value) => Math.floor(Math.log10(value) + 1e-9);

export function formatNumber(value, plain) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const unit = chooseUnit(Math.abs(value), plain);
  return writeNumber(value, unit, DIGITS - 1 - powerOf(Math.abs(value) / unit[0]), true);
}

// Contexts and actions: with all digits before the point, where there are at most nine.
export const formatNumbers = (values) => values.map((value) => formatNumber(value, 1e9)).join(", ");

// The labels of an axis: one unit for all, and as many decimals as tell neighbours apart.
export function formatTicks(values, step) {
  const unit = chooseUnit(Math.max(...values.map(Math.abs)) || 1);
  return values.map((value) => (value === 0 ? "0" : writeNumber(value, unit, -powerOf(step / unit[0]), false)));
}

export const formatCount = (count) => writeNumber(count, [1, ""], 0, false);

// How many steps used another context than the one that was sent, and how many had a meter that may be stuck.
export function formatReadings(screened, stuck) {
  return [screened && `${formatCount(screened)} reading${screened === 1 ? "" : "s"} replaced`, stuck && `${formatCount(stuck)} stuck`].filter(Boolean).join(", ");
}

// "100 %" and "0 %" are said of all and nothing only.
export function formatShare(share) {
  const percent = share * 100;
  if (percent > 0 && percent < 0.05) return `<${SPACE}0.1${SPACE}%`;
  return `${percent < 9.95 ? writeNumber(percent, [1, ""], 1, true) : Math.floor(percent)}${SPACE}%`;
}

export function formatAge(at, now = Date.now() / 1000) {
  if (!at) return "–";
  const seconds = Math.max(now - at, 0);
  if (seconds < 1.5) return "just now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

export function shareLeft(spent) {
  return spent === null || spent === undefined ? null : Math.min(Math.max(1 - spent, 0), 1);
}

export function fillBar(bar, share) {
  bar.setAttribute("width", share === null ? 0 : share * 100);
  bar.setAttribute("class", `fill${share === null ? "" : share <= 0.01 ? " out" : share < 0.2 ? " low" : ""}`);
}

// Call `onSteps` with each list of new steps, and `onReconnect` after a gap; show the state of the connection.
export function watchEvents(address, onSteps, onReconnect) {
  const dot = document.getElementById("dot"), connection = document.getElementById("connection");
  const source = new EventSource(address);
  let lost = false;
  source.onopen = () => { dot.classList.add("on"); connection.textContent = "live"; if (lost) onReconnect(); lost = false; };
  source.onerror = () => { dot.classList.remove("on"); connection.textContent = "reconnecting"; lost = true; };
  source.addEventListener("steps", (event) => {
    dot.classList.remove("beat"); void dot.offsetWidth; dot.classList.add("beat");
    onSteps(JSON.parse(event.data));
  });
}

// Explanations: a button opens the popover beside it on a click, a touch, Enter or the mouse over it; Escape closes it.
for (const button of document.querySelectorAll("button[popovertarget]")) {
  const text = document.getElementById(button.getAttribute("popovertarget"));
  text.addEventListener("toggle", () => {
    const { left, bottom } = button.getBoundingClientRect();
    text.style.left = `${Math.max(Math.min(left, innerWidth - text.offsetWidth - 12), 12)}px`;
    text.style.top = `${bottom + text.offsetHeight + 12 < innerHeight ? bottom + 8 : Math.max(bottom - text.offsetHeight - 32, 12)}px`;
  });
  button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") text.showPopover(); });
  button.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") text.hidePopover(); });
}
