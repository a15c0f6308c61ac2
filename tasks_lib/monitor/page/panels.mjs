// The figures beside the grid. A line with a history opens its curve.
import { bytes, duration, figureName, number, operation, printable } from "./words.mjs";

const SECONDS = new Set(["queues"]);
const BARS = new Set(["versions", "staleness", "browsers", "abstentions", "finished"]);

export class Panels {
  /** @param open called with the path and the name of a figure whose curve a person wants to see */
  constructor(root, open) {
    this.open = open;
    this.lists = new Map([...root.querySelectorAll("[data-panel]")].map((section) => [section.dataset.panel, section]));
    root.addEventListener("click", ({ target }) => {
      const line = target.closest("button[data-figure]");
      if (line) open(line.dataset.figure, figureName(line.dataset.figure));
    });
  }

  /** Show the run's figures. */
  run(figures) {
    for (const name of ["rates", "queues", "engine", "versions", "staleness", "browsers", "sites", "abstentions", "finished"]) {
      this.#rows(name, Object.entries(figures[name] ?? {}), true);
    }
    const trainer = figures.trainer ?? {};
    document.getElementById("trainer-phase").textContent = trainer.phase ?? "–";
    const bar = document.getElementById("trainer-share");
    bar.hidden = trainer.share === null || trainer.share === undefined;
    bar.value = trainer.share ?? 0;
  }

  /** Show load and memory of the workers. @param workers Map of name to its newest state */
  workers(workers) {
    const rows = [...workers.values()].map((state) => [
      state.worker,
      `CPU ${Math.round(state.cpu * 100)} %, memory ${Math.round(state.memory * 100)} %${state.lag > 0.5 ? `, ${duration(state.lag)} late` : ""}`,
    ]);
    this.#rows("workers", rows.sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true })), false);
  }

  #rows(panel, entries, curves) {
    const section = this.lists.get(panel);
    const list = section.querySelector("dl");
    section.hidden = entries.length === 0;
    const most = BARS.has(panel) ? Math.max(1, ...entries.map(([, value]) => Number(value) || 0)) : 0;
    const known = new Map([...list.children].map((row) => [row.dataset.name, row]));
    for (const [name, value] of entries) {
      const row = known.get(name) ?? list.appendChild(makeRow(panel, name, curves));
      known.delete(name);
      const measure = SECONDS.has(panel) ? duration : panel === "sites" && name.endsWith(" memory") ? bytes : null;
      const text = measure ? measure(value) : typeof value === "string" ? printable(value, 300) : number(value);
      if (row.value.textContent !== text) row.value.textContent = text;
      if (most) row.style.setProperty("--share", `${((100 * (Number(value) || 0)) / most).toFixed(1)}%`);
    }
    for (const row of known.values()) row.remove();
  }
}

function makeRow(panel, name, curve) {
  const row = document.createElement("div");
  row.dataset.name = name;
  const term = document.createElement("dt");
  const path = `${panel}.${name}`;
  const label = panel === "versions" ? `v${name}` : panel === "staleness" ? `${name} ${name === "1" ? "version" : "versions"} old` : figureName(path);
  if (curve) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.dataset.figure = path;
    button.textContent = printable(label, 300);
    button.title = "Show the last 15 minutes";
    term.append(button);
  } else {
    term.textContent = printable(label, 300);
  }
  row.value = document.createElement("dd");
  row.append(term, row.value);
  return row;
}

/** Draw the totals: a bar of shares, and a line for each operation that occurs. */
export function showTotals({ counts, slow, all }) {
  const bar = document.getElementById("totals-bar");
  const list = document.getElementById("totals");
  const present = ["reset", "navigate", "observe", "screenshot", "queue", "turn", "execute", "settle", "judge", "restart", "idle"];
  present.push(...Object.keys(counts).filter((name) => !present.includes(name)));
  for (const name of present) {
    const count = counts[name] ?? 0;
    const part = bar.querySelector(`[data-doing="${CSS.escape(name)}"]`) ?? bar.appendChild(made("span", name));
    part.style.flexGrow = count;
    let item = list.querySelector(`[data-doing="${CSS.escape(name)}"]`);
    if (item === null) {
      item = list.appendChild(made("li", name));
      const { letter, label, what } = operation(name);
      const button = document.createElement("button");
      button.type = "button";
      button.className = "total";
      button.dataset.figure = `cells.${name}`;
      button.title = `${what}; show the last 15 minutes`;
      const key = document.createElement("span");
      key.className = "key";
      key.dataset.doing = name;
      key.textContent = letter || "\u00a0";
      const text = document.createElement("span");
      text.textContent = ` ${label} `;
      item.number = document.createElement("b");
      button.append(key, text, item.number);
      item.append(button);
    }
    item.number.textContent = String(count);
    item.classList.toggle("none", count === 0);
  }
  document.getElementById("count").textContent = all ? `${all}` : "";
  document.getElementById("slow").textContent = slow ? `${slow} slower than 99 of 100 of their kind (outlined)` : "";
}

function made(tag, name) {
  const element = document.createElement(tag);
  element.dataset.doing = name;
  return element;
}

/** Show what the run is, how far it is, and what is wrong with it. */
export function showHead(run) {
  const state = document.getElementById("state");
  state.dataset.state = run.state ?? "unknown";
  state.textContent = run.state ?? "unknown";
  const title = printable(run.title || run.run_id || "Rollwright monitor", 300);
  document.getElementById("title").textContent = title;
  document.title = `${title} – monitor`;
  const success = run.success ?? {};
  const facts = [
    run.version === null || run.version === undefined ? null : `version ${run.version}`,
    success.mean === null || success.mean === undefined ? null : `success ${success.mean.toFixed(2)}${success.low === undefined || success.low === null ? "" : ` (${success.low.toFixed(2)} to ${success.high.toFixed(2)})`}`,
    run.started ? `for ${duration(Date.now() / 1000 - run.started)}` : null,
    run.phase ? printable(phaseText(run.phase), 100) : null,
    run.disk ? `${bytes(run.disk.free)} of disk left` : null,
  ].filter(Boolean);
  document.getElementById("facts").replaceChildren(...facts.map((text) => Object.assign(document.createElement("span"), { textContent: text })));
  const known = Boolean(run.iterations);
  document.getElementById("progress").hidden = !known;
  if (known) {
    document.getElementById("progress-text").textContent = `iteration ${run.iteration ?? 0} of ${run.iterations}`;
    const bar = document.getElementById("iterations");
    bar.max = run.iterations;
    bar.value = run.iteration ?? 0;
  }
  showProblem(run.problem ?? null);
}

/** "i000012" and "e000012", as the run's folders name them, in words. */
function phaseText(phase) {
  const [, kind, count] = /^([ie])0*(\d+)$/.exec(phase) ?? [];
  return kind === "i" ? `rollouts of iteration ${count}` : kind === "e" ? `evaluation of version ${count}` : phase;
}

export function showProblem(sentence) {
  const line = document.getElementById("problem");
  line.hidden = !sentence;
  line.textContent = printable(sentence);
}
