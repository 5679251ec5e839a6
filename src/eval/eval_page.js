// Draws the plots of an evaluation from the report that is in the page.
// SPDX-License-Identifier: Apache-2.0
"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const plots = document.getElementById("plots");

// Told apart by people who see no red or green, too.
const COLOURS = ["#222222", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f"];
const formats = [...new Set(["bf16", ...report.measures.map((m) => m.format), ...report.curves.map((c) => c.format)])];
const colourOf = (format) => COLOURS[formats.indexOf(format) % COLOURS.length];

// ---- elements ------------------------------------------------------------------------------------

// Text goes in as text, never as HTML.
function add(parent, name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  parent.append(element);
  return element;
}

function section(title, words) {
  add(plots, "h2", title);
  if (words) add(plots, "p", words);
  return add(plots, "div");
}

// A select that calls draw(option) now and whenever it changes.
function chooser(parent, options, draw) {
  const select = add(parent, "select");
  for (const option of options) add(select, "option", option);
  const redraw = () => draw(select.value);
  select.addEventListener("change", redraw);
  return redraw;
}

// ---- charts --------------------------------------------------------------------------------------

// Draws points' `low` and `high` as a bar through them.
const intervals = {
  id: "intervals",
  afterDatasetsDraw(chart) {
    const { ctx, scales } = chart;
    chart.data.datasets.forEach((dataset, index) => {
      const meta = chart.getDatasetMeta(index);
      if (meta.hidden) return;
      dataset.data.forEach((point, i) => {
        if (point.low == null || point.high == null) return;
        const x = meta.data[i].x;
        const end = (value) => {
          const area = chart.chartArea;
          const y = value > 0 || scales.y.type !== "logarithmic" ? scales.y.getPixelForValue(value) : area.bottom;
          return Math.min(area.bottom, Math.max(area.top, y));
        };
        ctx.save();
        ctx.strokeStyle = dataset.borderColor;
        ctx.beginPath();
        ctx.moveTo(x, end(point.low));
        ctx.lineTo(x, end(point.high));
        ctx.stroke();
        ctx.restore();
      });
    });
  },
};

function axis(title, logarithmic) {
  return { type: logarithmic ? "logarithmic" : "linear", title: { display: true, text: title } };
}

// Of layers, channels and other numbers of things.
const counting = (title) => ({ ...axis(title), bounds: "data", ticks: { precision: 0 } });

// Room for intervals, which Chart.js knows nothing of.
function withRoom(y, datasets) {
  const ends = datasets
    .flatMap((set) => set.data.flatMap((point) => [point.low, point.high]))
    .filter((end) => end != null && (end > 0 || y.type !== "logarithmic"));
  return ends.length === 0 ? y : { ...y, suggestedMin: Math.min(...ends), suggestedMax: Math.max(...ends) };
}

function chart(parent, datasets, x, y, options = {}) {
  const canvas = add(add(parent, "div", undefined, "plot"), "canvas");
  return new Chart(canvas, {
    type: "scatter",
    data: { datasets },
    plugins: [intervals],
    options: {
      animation: false,
      maintainAspectRatio: false,
      scales: { x, y: withRoom(y, datasets) },
      plugins: {
        title: { display: Boolean(options.title), text: options.title },
        legend: { labels: { boxHeight: 8, boxWidth: 12 } },
        tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${item.parsed.x}, ${item.parsed.y}` } },
      },
    },
  });
}

const dots = (label, data, colour) => ({
  label, data, borderColor: colour, backgroundColor: colour, pointRadius: 5, pointHoverRadius: 7,
});
const line = (label, data, colour, width = 1.5) => ({
  label, data, borderColor: colour, backgroundColor: colour, showLine: true, borderWidth: width, pointRadius: 0,
  pointHitRadius: 6,
});
const points = (curve, scale = 1) => curve.x.map((x, i) => ({ x, y: curve.y[i] * scale }));

// ---- what is shown -------------------------------------------------------------------------------

const measure = (task, format, metric) =>
  report.measures.find((m) => m.task === task && m.format === format && m.metric === metric);
const curvesOf = (task) => report.curves.filter((c) => c.task === task);

// Points that no other beats in both bytes and quality, from few bytes to many.
function paretoFront(all, lessIsBetter) {
  const front = [];
  for (const point of [...all].sort((a, b) => a.x - b.x || (lessIsBetter ? a.y - b.y : b.y - a.y))) {
    const best = front.at(-1);
    if (!best || (lessIsBetter ? point.y < best.y : point.y > best.y)) front.push(point);
  }
  return front;
}

// Metrics of other tasks at the bytes that the task over a text counted.
const QUALITIES = [
  { task: "text", metric: "divergence", less: true },
  { task: "text", metric: "ratio", less: true },
  { task: "text", metric: "agreement", less: false },
  { task: "passkey", metric: "found", less: false },
  { task: "passkey", metric: "log_probability", less: false },
  { task: "needles", metric: "found", less: false },
  { task: "needles", metric: "log_probability", less: false },
  { task: "similarity", metric: "rouge1", less: false },
  { task: "similarity", metric: "edit_similarity", less: false },
];

function qualityAgainstBytes() {
  const known = QUALITIES.filter((q) => measure(q.task, "bf16", q.metric) && measure("text", "bf16", "bytes"));
  if (known.length === 0) return;
  const place = section(
    "Quality against memory",
    "Bytes of KV a token at the end of a window, all metadata and rows of 16 bits included. The line joins " +
      "formats that no other one beats in both. Zero does not show on a logarithmic axis.");
  const names = known.map((q) => `${q.task}: ${q.metric}`);
  let current;
  const redraw = chooser(place, names, (name) => {
    current?.canvas.parentNode.remove();
    current?.destroy();
    const quality = known[names.indexOf(name)];
    const all = formats.flatMap((format) => {
      const bytes = measure("text", format, "bytes");
      const found = measure(quality.task, format, quality.metric);
      if (bytes?.value == null || found?.value == null) return [];
      return [{ format, x: bytes.value, y: found.value, low: found.low, high: found.high }];
    });
    const logarithmic = quality.metric === "divergence";
    const shown = logarithmic ? all.filter((point) => point.y > 0) : all;
    const front = paretoFront(shown, quality.less).map(({ x, y }) => ({ x, y }));
    const sets = shown.map((point) => dots(point.format, [point], colourOf(point.format)));
    sets.push({ ...line("no other is better", front, "#999999"), borderDash: [4, 4] });
    current = chart(place, sets, axis("bytes a token"), axis(name, logarithmic));
  });
  redraw();
}

function textWithIntervals() {
  const metrics = ["perplexity", "ratio", "divergence", "agreement"].filter((m) => measure("text", "bf16", m));
  if (metrics.length === 0) return;
  const place = add(section("Over a text", "Points with 95 % intervals of the paired bootstrap over windows."),
    "div", undefined, "plots");
  for (const metric of metrics) {
    const logarithmic = metric === "divergence";
    const sets = formats.flatMap((format, i) => {
      const found = measure("text", format, metric);
      if (found?.value == null || (logarithmic && found.value <= 0)) return [];
      return [dots(format, [{ x: i, y: found.value, low: found.low, high: found.high }], colourOf(format))];
    });
    if (sets.length === 0) continue;
    const x = { ...axis(""), display: false, min: -0.5, max: formats.length - 0.5 };
    chart(place, sets, x, axis(metric, logarithmic), { title: metric });
  }
}

// Blue where values are high, white where they are low.
function shade(share) {
  const mix = (to) => Math.round(255 + (to - 255) * Math.min(1, Math.max(0, share)));
  return `rgb(${mix(40)}, ${mix(110)}, ${mix(180)})`;
}

function heatMap(parent, format, curves, low, high, text) {
  const place = add(parent, "div");
  add(place, "h3", format);
  const table = add(place, "table", undefined, "map");
  const head = add(table, "tr");
  add(head, "th", "tokens \\ depth");
  for (const depth of curves[0].x) add(head, "th", `${Math.round(1000 * depth) / 10} %`);
  for (const curve of curves) {
    const row = add(table, "tr");
    add(row, "th", curve.name.match(/(\d+) tokens/)[1]);
    curve.y.forEach((value) => {
      const cell = add(row, "td", value == null ? "" : text(value));
      const share = high > low ? (value - low) / (high - low) : 1;
      cell.style.background = shade(share);
      cell.style.color = share > 0.6 ? "#fff" : "#222";
    });
  }
}

function retrieval(task) {
  const kinds = [
    { name: "found", words: "share of prompts whose answer holds the value", text: (v) => `${Math.round(100 * v)} %` },
    { name: "log_probability", words: "mean log probability of the value's tokens, nats", text: (v) => v.toFixed(2) },
  ];
  const of = (kind) => curvesOf(task).filter((c) => c.name.startsWith(`${kind},`));
  if (of("found").length === 0) return;
  const place = section(`Retrieval: ${task}`, "By length of the prompt and depth of the needle in it.");
  for (const kind of kinds) {
    add(place, "h3", `${kind.name}: ${kind.words}`);
    const maps = add(place, "div", undefined, "maps");
    const values = of(kind.name).flatMap((c) => c.y).filter((v) => v != null);
    const [low, high] = kind.name === "found" ? [0, 1] : [Math.min(...values), Math.max(...values)];
    for (const format of formats) {
      const curves = of(kind.name).filter((c) => c.format === format);
      if (curves.length > 0) heatMap(maps, format, curves, low, high, kind.text);
    }
  }
}

function errorsByLayer() {
  const curves = curvesOf("layers");
  if (curves.length === 0) return;
  const place = add(
    section("Error by layer", "Squared error of sealed slabs against their rows, relative to the rows' squares. " +
      "K is as it is cached, after RoPE. Zero does not show."), "div", undefined, "plots");
  for (const plane of ["k", "v"]) {
    const sets = curves
      .filter((c) => c.name === plane && c.y.some((y) => y > 0))
      .map((c) => ({ ...line(c.format, points(c).filter((p) => p.y > 0), colourOf(c.format)), pointRadius: 3 }));
    if (sets.length === 0) continue;
    chart(place, sets, counting("layer"), axis("relative squared error", true), { title: plane.toUpperCase() });
  }
}

// "k, layer 3, head 1" of "k, layer 3, head 1, median".
const headOf = (name) => name.split(", ").slice(0, 3).join(", ");

function channels() {
  const curves = curvesOf("channels");
  if (curves.length === 0) return;
  const place = section(
    "Channels", "Smallest and largest value of each channel over the tokens of a text, 1st and 99th percentile, and " +
      "median, in 16 bits.");
  const styles = { min: "#bbbbbb", p1: "#56b4e9", median: "#222222", p99: "#56b4e9", max: "#bbbbbb" };
  const heads = [...new Set(curves.map((c) => headOf(c.name)))];
  let current;
  const redraw = chooser(place, heads, (head) => {
    current?.canvas.parentNode.remove();
    current?.destroy();
    const sets = curves
      .filter((c) => headOf(c.name) === head)
      .map((c) => {
        const rank = c.name.split(", ").at(-1);
        return line(rank, points(c), styles[rank]);
      });
    current = chart(place, sets, counting("channel"), axis("value"), { title: head });
  });
  redraw();
}

function spectra() {
  const curves = curvesOf("spectrum");
  if (curves.length === 0) return;
  const place = add(
    section("Singular values", "Of tokens x channels of each head in 16 bits, relative to the largest. The steeper, " +
      "the fewer dimensions hold it."), "div", undefined, "plots");
  for (const plane of ["k", "v"]) {
    const own = curves.filter((c) => c.name.startsWith(`${plane},`) && c.y[0] > 0);
    const sets = own.map((c, i) => {
      const colour = `hsl(${Math.round((270 * i) / Math.max(1, own.length - 1))}, 65%, 45%)`;
      return line(c.name.slice(3), points(c, 1 / c.y[0]).filter((p) => p.y > 1e-8), colour, 1);
    });
    if (sets.length === 0) continue;
    chart(place, sets, counting("number"), axis("of the largest", true), { title: plane.toUpperCase() });
  }
}

qualityAgainstBytes();
textWithIntervals();
retrieval("passkey");
retrieval("needles");
errorsByLayer();
channels();
spectra();
