// Words and number formats that the page shows.

/** What an environment waits for: name, letter on its cell, and an explanation, in the order of the totals. */
export const OPERATIONS = {
  reset: { letter: "R", label: "reset", what: "waits for a page and its reset" },
  navigate: { letter: "N", label: "navigate", what: "the browser loads a page" },
  observe: { letter: "O", label: "observe", what: "reads the page" },
  screenshot: { letter: "P", label: "screenshot", what: "takes a picture of the page" },
  queue: { letter: "Q", label: "queue", what: "waits for the encoder or the engine" },
  turn: { letter: "T", label: "model turn", what: "the policy generates" },
  execute: { letter: "E", label: "execute", what: "carries out an action" },
  settle: { letter: "S", label: "settle", what: "waits until the page is still" },
  judge: { letter: "J", label: "judge", what: "the episode is graded" },
  restart: { letter: "B", label: "browser restart", what: "the browser starts again" },
  idle: { letter: "", label: "idle", what: "the place has no episode" },
};

/** Names of figures as a person says them; a figure without a row is shown by its own name. */
const FIGURES = {
  "rates.episodes": "episodes a second",
  "rates.steps": "steps a second",
  "rates.tokens": "tokens a second",
  "queues.permit": "start of an episode",
  "queues.encode": "encoder",
  "queues.engine": "engine",
  "queues.reward": "grading",
  "queues.trainer": "trainer",
  "engine.queued": "turns that wait",
  "engine.running": "turns that run",
  "engine.batch": "turns in a batch",
  "trainer.share": "share of the update that is done",
};

export function operation(name) {
  return OPERATIONS[name] ?? { letter: "?", label: String(name), what: String(name) };
}

export function figureName(path) {
  return FIGURES[path] ?? path.slice(path.indexOf(".") + 1).replaceAll("_", " ");
}

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds.toFixed(1)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${number(unit ? Number(count.toPrecision(3)) : count)} ${units[unit]}`;
}

/** A text of a page or a model, made harmless to read: no control or direction characters, not endless. */
export function printable(text, most = 2000) {
  const plain = String(text ?? "").slice(0, most + 1).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  return plain.length > most ? `${plain.slice(0, most)}…` : plain;
}
