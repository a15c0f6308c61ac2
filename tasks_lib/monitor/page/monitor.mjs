// Takes the server's events and shows them, once a frame at most.
import { Cells } from "./cells.mjs";
import { Curve } from "./curve.mjs";
import { Episode } from "./episode.mjs";
import { FlowRuns } from "./flow_runs.mjs";
import { Panels, showHead, showProblem, showTotals } from "./panels.mjs";

const SORT_MS = 2000;

const workers = new Map(); // name -> newest state
const waiting = { workers: new Map(), run: null, drawn: false };
let run = {};
let lost = false;

const cells = new Cells(document.getElementById("cells"), (cell) => episode.open(cell));
const episode = new Episode(document.getElementById("episode"), cells);
const curve = new Curve(document.getElementById("curve"));
const panels = new Panels(document.querySelector("main > aside"), (path, name) => curve.open(path, name));

new FlowRuns(document.getElementById("flow-runs"), document.getElementById("changes"),
  (flowRun) => flowRun.question !== null || flowRun.run === run.run_id);

document.getElementById("totals").addEventListener("click", ({ target }) => {
  const line = target.closest("button[data-figure]");
  if (line) curve.open(line.dataset.figure, line.textContent.trim());
});
for (const id of ["group-by", "sort-by"]) {
  document.getElementById(id).addEventListener("change", arrange);
}
setInterval(() => cells.sort(), SORT_MS);

const events = new EventSource("/events");
events.addEventListener("workers", ({ data }) => {
  for (const state of JSON.parse(data)) waiting.workers.set(state.worker, state);
  drawSoon();
});
events.addEventListener("run", ({ data }) => {
  waiting.run = JSON.parse(data);
  drawSoon();
});
events.addEventListener("open", () => {
  lost = false;
  // Workers that ended while the server could not be reached are not told of again.
  for (const name of workers.keys()) waiting.workers.set(name, { worker: name, gone: true });
  drawSoon();
});
events.addEventListener("error", () => {
  lost = true;
  showProblem("The monitor's server cannot be reached; this page shows its last message and tries again.");
});

function drawSoon() {
  if (waiting.drawn) return;
  waiting.drawn = true;
  // Frames stop in a tab that is not seen; what has come is shown when it is seen again.
  requestAnimationFrame(draw);
}

function draw() {
  waiting.drawn = false;
  for (const [name, state] of waiting.workers) {
    if (state.gone) workers.delete(name);
    else workers.set(name, state);
    cells.update(state);
  }
  if (waiting.workers.size) {
    waiting.workers.clear();
    panels.workers(workers);
    showTotals(cells.totals());
    document.getElementById("empty").hidden = cells.cells.size > 0;
  }
  if (waiting.run !== null) {
    run = waiting.run;
    waiting.run = null;
    panels.run(run);
    showHead(run);
  }
  if (lost) showProblem("The monitor's server cannot be reached; this page shows its last message and tries again.");
}

function arrange() {
  cells.arrange(document.getElementById("group-by").value, document.getElementById("sort-by").value);
}
