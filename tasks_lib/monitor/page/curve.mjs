// A figure's last 15 minutes.
import { loadPlot } from "./plot.mjs";
import { number, printable } from "./words.mjs";

const REFRESH_MS = 2000;

export class Curve {
  constructor(dialog) {
    this.dialog = dialog;
    this.place = dialog.querySelector("#plot");
    this.plot = null;
    this.timer = null;
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => this.#clear());
  }

  open(path, name) {
    this.#clear();
    this.dialog.querySelector("h2").textContent = printable(name, 300);
    if (!this.dialog.open) this.dialog.showModal();
    this.path = path;
    this.#refresh(path);
  }

  async #refresh(path) {
    let data = null;
    try {
      const answer = await fetch(`/curve?${new URLSearchParams({ name: path })}`);
      if (answer.ok) data = await answer.json();
    } catch {
      // the next attempt says whether the server is back
    }
    if (this.path !== path || !this.dialog.open) return;
    if (data === null || data.times.length === 0) {
      if (this.plot === null) this.place.textContent = "No value of it has been seen yet.";
    } else {
      this.Plot ??= await loadPlot();
      if (this.path === path) this.#draw([data.times, data.values]);
    }
    this.timer = setTimeout(() => this.#refresh(path), REFRESH_MS);
  }

  #draw(data) {
    if (this.plot !== null) {
      this.plot.setData(data);
      return;
    }
    this.place.textContent = "";
    const colours = getComputedStyle(document.documentElement);
    const ink = colours.getPropertyValue("--soft").trim();
    const grid = { stroke: colours.getPropertyValue("--rule").trim(), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid };
    this.plot = new this.Plot({
      width: Math.max(240, this.place.clientWidth),
      height: 260,
      legend: { show: true },
      scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
      series: [{}, { label: "value", stroke: colours.getPropertyValue("--held").trim(), width: 2, value: (_, value) => number(value), points: { show: data[0].length < 2 } }],
      axes: [axis, { ...axis, values: (_, ticks) => ticks.map(number) }],
    }, data, this.place);
  }

  #clear() {
    clearTimeout(this.timer);
    this.path = null;
    this.plot?.destroy();
    this.plot = null;
    this.place.textContent = "";
  }
}
