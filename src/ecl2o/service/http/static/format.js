// Formatting of numbers, ages and bars, and the connection to /events.

export function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
  const decimals = digits - 1 - Math.floor(Math.log10(Math.abs(value)));
  if (decimals > 9) return value.toExponential(digits - 1);
  const text = value.toFixed(decimals);
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

export const formatNumbers = (values) => values.map((value) => formatNumber(value)).join(", ");

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
