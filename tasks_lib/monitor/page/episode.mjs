// The episode of a cell while it runs.
import { duration, number, operation, printable } from "./words.mjs";

const REFRESH_MS = 1000;

export class Episode {
  constructor(dialog, cells) {
    this.dialog = dialog;
    this.cells = cells;
    this.cell = null;
    this.timer = null;
    this.picture = "";
    dialog.addEventListener("close", () => this.#stop());
    dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) this.#step(by, event);
    });
    dialog.querySelector("#previous").addEventListener("click", (event) => this.#step(-1, event));
    dialog.querySelector("#next").addEventListener("click", (event) => this.#step(1, event));
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  }

  open(cell) {
    this.cell = cell;
    this.picture = "";
    if (!this.dialog.open) this.dialog.showModal();
    clearTimeout(this.timer);
    this.#refresh(cell);
  }

  #step(by, event) {
    event.preventDefault();
    const cell = this.cell && this.cells.neighbour(this.cell.key, by);
    if (cell) this.open(cell);
  }

  #stop() {
    clearTimeout(this.timer);
    const key = this.cell?.key;
    this.cell = null;
    if (key) this.cells.focus(key);
  }

  async #refresh(cell) {
    const query = new URLSearchParams({ worker: cell.worker, slot: cell.index });
    let shown;
    try {
      const answer = await fetch(`/episode?${query}`);
      shown = answer.ok ? await answer.json() : { error: (await answer.json().catch(() => ({}))).error ?? `the server answers ${answer.status}` };
    } catch {
      shown = { error: "the monitor's server does not answer" };
    }
    if (this.cell !== cell) return; // another one was opened meanwhile
    this.#show(shown, query);
    this.timer = setTimeout(() => this.#refresh(cell), REFRESH_MS);
  }

  #show(episode, query) {
    const text = (id, value) => { document.getElementById(id).textContent = value; };
    text("episode-title", printable(episode.error ? `${this.cell.worker}, place ${this.cell.index}` : episode.task_id || episode.kind, 200));
    text("instruction", episode.error ? printable(episode.error) : printable(episode.instruction));
    const facts = episode.error ? [] : [
      `step ${episode.step} of ${episode.horizon}`,
      `${operation(episode.doing).label} for ${duration(episode.seconds)}`,
      `policy version ${episode.version}`,
      episode.prompt_tokens ? `prompt of ${number(episode.prompt_tokens)} tokens` : null,
      printable(episode.episode_id, 200),
    ].filter(Boolean);
    document.getElementById("episode-facts").replaceChildren(...facts.map((fact) => Object.assign(document.createElement("span"), { textContent: fact })));
    const steps = (episode.steps ?? []).map((step, index) => ({ ...step, number: index + 1 })).reverse();
    document.getElementById("steps").replaceChildren(...steps.map(row));
    this.#showPicture(episode, query);
  }

  #showPicture(episode, query) {
    const image = document.getElementById("screenshot");
    const has = Boolean(episode.screenshot) && !episode.error;
    document.getElementById("no-screenshot").hidden = has;
    image.hidden = !has;
    const name = has ? `${episode.episode_id} ${episode.step}` : "";
    if (has && name !== this.picture) image.src = `/screenshot?${query}&${new URLSearchParams({ episode: episode.episode_id, step: episode.step })}`;
    this.picture = name;
  }
}

function row(step) {
  const line = document.createElement("tr");
  const seconds = step.seconds ?? {};
  const total = (seconds.observe ?? 0) + (seconds.generate ?? 0) + (seconds.act ?? 0);
  const cells = [String(step.number), printable(step.action, 300), printable(step.error || step.effect, 300), duration(total)];
  cells.forEach((text, index) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (index === 1) cell.className = "action";
    if (index === 2 && step.error) cell.className = "bad";
    line.append(cell);
  });
  return line;
}
