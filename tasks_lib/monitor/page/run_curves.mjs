// Success of one run or of several over each other, by version, episodes or time.
/* global el -- of the report's scripts */
import { loadPlot } from "./plot.mjs";

const AXES = { version: "policy version", episodes: "episodes trained on", seconds: "hours" };
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f6d5f", "#8c6bb1", "#4d4d4d", "#1b9e77", "#b15928", "#6a3d9a"];

/** Make the figure. @param curves by run: rows of (version, episodes, seconds, mean, ...) */
export function drawCurves(curves) {
  const place = el("div", { class: "curves" });
  const axis = el("select", {}, Object.entries(AXES).map(([value, name]) => el("option", { value }, name)));
  const draw = () => plot(place, curves, Object.keys(AXES).indexOf(axis.value), AXES[axis.value]);
  axis.addEventListener("change", draw);
  requestAnimationFrame(draw);
  return el("div", {}, el("div", { class: "tools" }, el("label", {}, "Over", axis)), place);
}

async function plot(place, curves, column, label) {
  const names = Object.keys(curves);
  const scale = column === 2 ? 1 / 3600 : 1;
  const points = names.map((name) => curves[name].evaluations.filter((row) => row[column] !== null && row[3] !== null).map((row) => [row[column] * scale, row[3]]));
  const xs = [...new Set(points.flat().map(([x]) => x))].sort((a, b) => a - b);
  if (!xs.length) {
    place.replaceChildren(el("p", { class: "empty" }, "No evaluation yet."));
    return;
  }
  const series = points.map((rows) => {
    const known = new Map(rows);
    return xs.map((x) => known.get(x) ?? null);
  });
  const Plot = await loadPlot();
  const style = getComputedStyle(document.documentElement);
  const grid = { stroke: style.getPropertyValue("--rule").trim(), width: 1 };
  const line = { stroke: style.getPropertyValue("--soft").trim(), grid, ticks: grid };
  place.replaceChildren();
  new Plot({
    width: Math.max(260, place.clientWidth),
    height: 260,
    scales: { x: { time: false }, y: { range: [0, 1] } },
    axes: [{ ...line, label }, { ...line, label: "success" }],
    series: [{ label }, ...names.map((name, index) => ({ label: name, stroke: COLOURS[index % COLOURS.length], width: 2, spanGaps: true, points: { show: true, size: 6 } }))],
  }, [xs, ...series], place);
}
