// Live plots, keyboard shortcuts, confirmations. Every page works without this file.
"use strict";

// -- theme

document.getElementById("theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("effectonce-theme", root.dataset.theme); } catch { /* without storage the choice lasts for this page */ }
});

// -- on a phone the menu scrolls: scroll to the current page

const here = document.querySelector(".side [aria-current]");
if (here) here.closest("nav").scrollLeft = here.offsetLeft - 24;

// -- keyboard: "/" goes to the search

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const field = document.getElementById("key") || document.getElementById("seek");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  } else if (event.key === "Escape" && typing) {
    event.target.blur();
  }
});

// -- lists: one checkbox for all rows, and a confirmation before an action on all

for (const box of document.querySelectorAll("input[data-all]")) {
  const boxes = () => box.form.querySelectorAll(`input[type=checkbox][name="${box.dataset.all}"]`);
  box.addEventListener("change", () => { for (const one of boxes()) one.checked = box.checked; });
  box.form.addEventListener("change", (event) => {
    if (event.target.name === box.dataset.all) box.checked = [...boxes()].every((one) => one.checked);
  });
}

for (const button of document.querySelectorAll("button[data-confirm]")) {
  button.addEventListener("click", (event) => {
    if (!confirm(button.dataset.confirm)) event.preventDefault();
  });
}

// -- plots

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300, HEIGHT = 64, PADDING = 4; // of the plots, in the units of their viewBox

function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return Math.round(value).toLocaleString("en");
  if (value >= 10 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(value < 1 ? 2 : 1);
}

// The number and the unit of a span.
function formatSpan(seconds) {
  if (seconds >= 7200) return [formatNumber(seconds / 3600), "hours"];
  if (seconds >= 120) return [formatNumber(seconds / 60), "minutes"];
  return [formatNumber(seconds), "seconds"];
}

const formatClock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

const svgElement = (name, attributes) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

// A line plot of the last minutes. The figure shows its newest value, or the one that is pointed at.
class Plot {
  constructor(figure) {
    this.name = figure.dataset.plot;
    this.output = figure.querySelector("output");
    this.unit = figure.querySelector("figcaption small");
    this.isSpan = figure.dataset.unit === "seconds";
    this.svg = figure.querySelector("svg");
    this.axis = figure.querySelectorAll(".axis span");
    this.points = [];
    if (!this.svg) return;
    this.area = svgElement("path", { class: "area" });
    this.line = svgElement("path", { class: "line" });
    this.cross = svgElement("line", { class: "cross", y1: 0, y2: HEIGHT });
    this.svg.append(this.area, this.line, this.cross);
    this.svg.addEventListener("pointermove", (event) => this.pointAt(event));
    this.svg.addEventListener("pointerleave", () => { this.pointedAt = null; this.showValue(); });
  }

  show(times, values) {
    if (!this.svg) return;
    this.points = times.map((at, n) => [at, values[n]]).filter(([, value]) => value !== null);
    const highest = Math.max(...this.points.map(([, value]) => value), 0);
    const top = highest > 0 ? highest * 1.15 : 1;
    const [from, to] = times.length ? [times[0], times[times.length - 1]] : [0, 1];
    this.x = (at) => (to > from ? ((at - from) / (to - from)) * WIDTH : WIDTH);
    const y = (value) => HEIGHT - PADDING - (value / top) * (HEIGHT - 2 * PADDING);
    const path = this.points.map(([at, value], n) => `${n ? "L" : "M"}${this.x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    this.line.setAttribute("d", path);
    const ends = this.points.length ? [this.x(this.points[0][0]), this.x(this.points.at(-1)[0])] : [];
    this.area.setAttribute("d", path && `${path}L${ends[1].toFixed(1)} ${HEIGHT}L${ends[0].toFixed(1)} ${HEIGHT}Z`);
    this.range = times.length ? [formatClock(from), formatClock(to)] : ["", ""];
    this.showValue();
  }

  pointAt(event) {
    if (!this.points.length) return;
    const box = this.svg.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
    this.pointedAt = this.points.reduce((best, candidate) =>
      Math.abs(this.x(candidate[0]) - wanted) < Math.abs(this.x(best[0]) - wanted) ? candidate : best)[0];
    this.showValue();
  }

  showValue() {
    const pointed = this.pointedAt ? this.points.find(([at]) => at === this.pointedAt) : null;
    const shown = pointed || this.points.at(-1);
    if (shown && this.isSpan) [this.output.textContent, this.unit.textContent] = formatSpan(shown[1]);
    else this.output.textContent = shown ? formatNumber(shown[1]) : "–";
    this.cross.setAttribute("class", pointed ? "cross on" : "cross");
    if (pointed) {
      this.cross.setAttribute("x1", this.x(pointed[0]));
      this.cross.setAttribute("x2", this.x(pointed[0]));
    }
    this.axis[0].textContent = pointed ? formatClock(pointed[0]) : this.range?.[0] || "";
    this.axis[1].textContent = pointed ? "" : this.range?.[1] || "";
  }
}

// -- the overview: fetches the figures every two seconds

const live = document.querySelector("[data-live]");
if (live) {
  const plots = [...live.querySelectorAll("[data-plot]")].map((figure) => new Plot(figure));
  const refresh = async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(live.dataset.live, { headers: { accept: "application/json" } });
      if (answer.status === 401) { location.assign("/login"); return; }
      if (!answer.ok) throw new Error(answer.statusText);
      const { series, states, needs } = await answer.json();
      for (const plot of plots) plot.show(series.at, series[plot.name]);
      for (const { state, count: text } of states) {
        const count = document.querySelector(`[data-count="${state}"]`);
        if (count) count.textContent = text;
      }
      live.dataset.state = "live";
      const shown = [...document.querySelectorAll(".needs a")];
      if (needs.map(({ where }) => where).join() !== shown.map((link) => link.getAttribute("href")).join()) {
        if (!document.activeElement?.matches("input")) location.reload(); // while the visitor types, wait for the next refresh
      } else needs.forEach(({ count, what }, n) => {
        shown[n].querySelector("b").textContent = count;
        shown[n].querySelector("span").textContent = what;
      });
    } catch { live.dataset.state = "lost"; }
  };
  refresh();
  setInterval(refresh, 2000);
  document.addEventListener("visibilitychange", refresh);
}
