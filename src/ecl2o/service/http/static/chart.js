// A line chart in SVG that follows its container's size, the mouse and the arrow keys.
import { formatNumbers, formatTicks } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 12, right: 14, bottom: 26 }; // and on the left the width of the labels

function addNode(parent, name, attributes = {}, text = null) {
  const created = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
  if (text !== null) created.textContent = text;
  parent.append(created);
  return created;
}

// Round numbers from low to high, about `count` of them, and the step between them.
function makeTicks(low, high, count) {
  const raw = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((width) => width >= raw);
  const first = Math.ceil(low / step), length = Math.max(Math.floor(high / step + 1e-9) - first + 1, 0);
  return [Array.from({ length }, (_, k) => (first + k) * step || 0), step];
}

// "01-08 13:00" of a time in ISO format, which is shown as it was sent.
const formatTime = (time) => time.slice(5, 16).replace("T", " ");

// holder: an element. The chart's data are {x: [steps], times: [ISO text or null], lines: [{key, name, values, stepped}], marks: [steps]}.
export class Chart {
  constructor(holder, label) {
    this.holder = holder;
    this.svg = addNode(holder, "svg", { role: "img", "aria-label": label, tabindex: 0 });
    this.label = label;
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    this.readout.setAttribute("aria-live", "polite");
    holder.append(this.readout);
    this.cursor = null;
    new ResizeObserver(() => this.draw()).observe(holder);
    this.svg.addEventListener("pointermove", (event) => this.followPointer(event));
    this.svg.addEventListener("pointerleave", () => this.moveCursor(null));
    this.svg.addEventListener("blur", () => this.moveCursor(null));
    this.svg.addEventListener("keydown", (event) => this.followKeys(event));
  }

  show(data) { this.data = data; this.draw(); }

  draw() {
    const { data, svg } = this;
    if (!data) return;
    const width = this.holder.clientWidth, height = this.holder.clientHeight;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("data-points", data.x.length);
    const all = data.lines.flatMap((line) => line.values).filter(Number.isFinite);
    if (!all.length) { addNode(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "waiting for the first step"); return; }
    let low = Math.min(...all), high = Math.max(...all);
    const margin = (high - low || Math.abs(high) || 1) * 0.08;
    low = data.fromZero ? Math.min(0, low) : low - margin; high += margin;
    const first = data.x[0], last = Math.max(data.x[data.x.length - 1], first + 1);
    const [ticks, apart] = makeTicks(low, high, height / 60);
    const labels = formatTicks(ticks, apart).map((text) => addNode(svg, "text", { "text-anchor": "end" }, text));
    const left = 16 + Math.ceil(Math.max(24, ...labels.map((label) => label.getComputedTextLength())));
    const X = (step) => left + ((step - first) / (last - first)) * (width - left - MARGIN.right);
    const Y = (value) => height - MARGIN.bottom - ((value - low) / (high - low)) * (height - MARGIN.top - MARGIN.bottom);
    this.scale = { X, first, last, width, left };
    ticks.forEach((value, index) => {
      addNode(svg, "line", { class: "grid", x1: left, x2: width - MARGIN.right, y1: Y(value), y2: Y(value) });
      labels[index].setAttribute("x", left - 8);
      labels[index].setAttribute("y", Y(value) + 4);
    });
    const most = width / 110, midnights = data.x.filter((_, index) => data.times?.[index]?.slice(11, 16) === "00:00");
    const days = midnights.filter((_, index) => index % Math.ceil(midnights.length / most) === 0);
    for (const step of days.length > 1 ? days : makeTicks(first, last, most)[0].filter(Number.isInteger)) {
      const time = data.times?.[data.x.indexOf(step)];
      addNode(svg, "text", { x: X(step), y: height - 8, "text-anchor": "middle" }, time ? formatTime(time) : step);
    }
    addNode(svg, "text", { x: left - 8, y: height - 8, "text-anchor": "end" }, data.times?.some(Boolean) ? "time" : "step");
    for (const line of data.lines) this.drawLine(line, X, Y);
    for (const step of data.marks ?? []) addNode(svg, "circle", { class: "k-guard", cx: X(step), cy: height - MARGIN.bottom - 4, r: 3 });
    this.rule = addNode(svg, "line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
    if (this.cursor !== null) this.moveCursor(this.cursor);
  }

  drawLine({ key, values, stepped }, X, Y) {
    let path = "", before = null, lastPoint = null;
    values.forEach((value, index) => {
      if (!Number.isFinite(value)) { before = null; return; }
      const x = X(this.data.x[index]).toFixed(1), y = Y(value).toFixed(1);
      path += before === null ? `M${x} ${y}` : stepped ? `H${x}V${y}` : `L${x} ${y}`;
      before = y; lastPoint = [x, y];
    });
    addNode(this.svg, "path", { class: `k-${key}`, d: path });
    if (lastPoint && key === "action") addNode(this.svg, "circle", { class: "head k-action", cx: lastPoint[0], cy: lastPoint[1], r: 5 });
  }

  followPointer(event) {
    if (!this.scale) return;
    const { first, last, width, left } = this.scale;
    const share = (event.offsetX - left) / (width - left - MARGIN.right);
    this.moveCursor(Math.round(first + Math.min(Math.max(share, 0), 1) * (last - first)));
  }

  followKeys(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined || !this.data?.x.length) return;
    event.preventDefault();
    const steps = this.data.x, now = this.cursor ?? steps[steps.length - 1] + (move < 0 ? 1 : 0);
    this.moveCursor(Math.min(Math.max(now + move, steps[0]), steps[steps.length - 1]));
  }

  moveCursor(step) {
    this.cursor = step;
    const index = step === null ? -1 : this.data.x.indexOf(step);
    this.readout.textContent = "";
    if (!this.rule) return;
    this.rule.setAttribute("visibility", index < 0 ? "hidden" : "visible");
    if (index < 0) return;
    this.rule.setAttribute("x1", this.scale.X(step));
    this.rule.setAttribute("x2", this.scale.X(step));
    const values = this.data.lines.filter((line) => Number.isFinite(line.values[index])).map((line) => `${line.name} ${formatNumbers([line.values[index]])}`);
    const time = this.data.times?.[index];
    this.readout.textContent = `${time ? `${formatTime(time)}, step` : "step"} ${step}: ${values.join(", ")}`;
  }
}
