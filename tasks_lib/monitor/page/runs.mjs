// The browser of runs: the list, one run, one episode, two episodes side by side. The address says which.
/* global el, present, visible, episodeDetail, decimals -- of the report's scripts */
import { EpisodeList } from "./episode_list.mjs";
import { FlowRuns } from "./flow_runs.mjs";
import { drawCurves } from "./run_curves.mjs";
import { duration } from "./words.mjs";

const main = document.getElementById("main");
const MARK = { success: "✓", failure: "✗", abstained: "○" };

export async function read(address) {
  const answer = await fetch(address);
  const value = await answer.json().catch(() => ({ error: `the server answers ${answer.status}` }));
  if (!answer.ok) throw new Error(value.error ?? `the server answers ${answer.status}`);
  return value;
}

const path = (...parts) => `/${parts.map(encodeURIComponent).join("/")}`;
const runPath = (run) => path("runs", run);
const apiPath = (run) => `/api${runPath(run)}`;

function head(title, trail, facts) {
  document.title = `${title} · Rollwright`;
  document.getElementById("title").textContent = visible(title);
  document.getElementById("trail").replaceChildren(...trail.flatMap(([name, address]) => [el("a", { href: address }, name), " / "]));
  document.getElementById("facts").replaceChildren(...present(facts).map((fact) => (fact instanceof Node ? fact : el("span", {}, fact))));
}

const rate = (success) => (!success ? "–" : success.mean === null ? "unknown" : decimals(success.mean, 2));
const interval = (success) => (success && success.low !== null && success.low !== undefined ? ` [${decimals(success.low, 2)}, ${decimals(success.high, 2)}]` : "");
const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "–");
const stateOf = (run) => el("span", { class: `state ${run.state}` }, run.state);

function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `h-${id}` }, el("h2", { id: `h-${id}` }, title), ...present(children));
}

/** Who started a run, by which deployment, and its tags, each a link to all runs with it. */
function byTags(run) {
  const words = [...new Set([run.started_by, run.deployment, ...run.tags])].filter(Boolean);
  return words.flatMap((word, at) => [at ? ", " : null, el("a", { href: `/runs?${new URLSearchParams({ words: word })}` }, word)]);
}

// ------------------------------------------------------------------ all runs

async function showRuns() {
  const rows = await read("/api/runs");
  head("Runs", [], [`${rows.length} under this root`]);
  const query = new URLSearchParams(location.search);
  const chosen = new Set(query.getAll("run"));
  const words = el("input", { type: "search", value: query.get("words") ?? "", "aria-label": "Words in name, preset, tag, deployment, or who started it" });
  const body = el("tbody");
  const compared = el("div");
  const remember = () => {
    const next = new URLSearchParams([...chosen].map((run) => ["run", run]));
    if (words.value) next.set("words", words.value);
    history.replaceState(null, "", next.size ? `?${next}` : location.pathname);
  };
  const fill = () => {
    const wanted = words.value.toLowerCase();
    const shown = rows.filter((run) => [run.run, run.preset, run.flow, run.state, run.started_by, run.deployment, run.flow_run, ...run.tags].join(" ").toLowerCase().includes(wanted));
    body.replaceChildren(...shown.map((run) => el("tr", {},
      el("td", {}, el("input", { type: "checkbox", checked: chosen.has(run.run), "aria-label": `Compare ${run.run}`, onchange: ({ target }) => {
        if (target.checked) chosen.add(run.run);
        else chosen.delete(run.run);
        remember();
        compare();
      } })),
      el("td", { class: "name" }, el("a", { href: runPath(run.run) }, run.run)),
      el("td", {}, stateOf(run)),
      el("td", {}, run.iterations ? el("progress", { class: "progress", max: run.iterations, value: run.iteration, "aria-label": "Progress" }) : null, ` ${run.iterations ? `${run.iteration} of ${run.iterations}` : ""}`),
      el("td", {}, run.before ? `${rate(run.before)} → ` : "", el("b", {}, rate(run.after)), el("span", { class: "quiet" }, interval(run.after))),
      el("td", {}, run.flow, run.preset ? el("span", { class: "quiet" }, ` ${run.preset}`) : null),
      el("td", {}, when(run.started)),
      el("td", {}, duration(run.seconds)),
      el("td", { class: "quiet" }, byTags(run)))));
  };
  const compare = async () => {
    if (!chosen.size) {
      compared.replaceChildren(el("p", { class: "quiet" }, "Tick runs to see their curves over each other, and the keys in which they differ."));
      return;
    }
    const names = [...chosen];
    try {
      const { curves, keys } = await read(`/api/compare?${new URLSearchParams(names.map((run) => ["run", run]))}`);
      compared.replaceChildren(
        section("curves", "Success", drawCurves(curves)),
        section("keys", "Keys that differ", keys.length ? el("div", { class: "wide" }, el("table", { class: "runs" },
          el("thead", {}, el("tr", {}, ["key", ...names].map((name) => el("th", { scope: "col" }, name)))),
          el("tbody", {}, keys.map((row) => el("tr", {}, row.map((value) => el("td", {}, value))))))) : el("p", { class: "quiet" }, "None.")));
    } catch (error) {
      compared.replaceChildren(el("p", { class: "bad" }, error.message));
    }
  };
  words.addEventListener("input", () => { remember(); fill(); });
  main.replaceChildren(
    section("runs", "All runs", el("div", { class: "tools" }, el("label", {}, "Words in name, preset, tag, deployment, or who started it", words)),
      el("div", { class: "wide" }, el("table", { class: "runs" },
        el("thead", {}, el("tr", {}, ["compare", "run", "state", "iterations", "success", "flow", "started", "seconds", "by, tags"].map((name) => el("th", { scope: "col" }, name)))), body)),
      rows.length ? null : el("p", { class: "empty" }, "There is no run here: no folder with a config.json.")),
    compared);
  fill();
  await compare();
}

// ------------------------------------------------------------------ one run

async function showRun(name) {
  const run = await read(apiPath(name));
  head(name, [["Runs", "/runs"]], [
    stateOf(run), run.iterations ? `iteration ${run.iteration} of ${run.iterations}` : null,
    run.after ? `success ${run.before ? `${rate(run.before)} → ` : ""}${rate(run.after)}${interval(run.after)}, n = ${run.after.n}` : "no evaluation yet",
    run.seconds ? duration(run.seconds) : null, `started ${when(run.started)}`, run.flow_run ? `flow run ${run.flow_run}` : null, run.started_by || run.tags.length ? el("span", {}, "by ", byTags(run)) : null, run.commit ? `commit ${run.commit.slice(0, 10)}` : null]);
  const pairs = (entries) => el("dl", { class: "pairs" }, entries.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, String(value)))));
  const folded = (title, body) => el("details", {}, el("summary", {}, title), body);
  const list = new EpisodeList(apiPath(name), (episode) => `${runPath(name)}/episodes/${encodeURIComponent(episode)}`);
  main.replaceChildren(
    ...present([run.notes.length ? section("notes", "What could not be read", el("ul", {}, run.notes.map((note) => el("li", {}, note)))) : null]),
    section("episodes", "Episodes", list.element),
    section("success", "Success", drawCurves({ [name]: run.curves })),
    section("kinds", "Last evaluation by task kind", el("div", { class: "wide" }, el("table", { class: "runs" }, el("tbody", {},
      Object.entries(run.kinds).map(([kind, success]) => el("tr", {}, el("th", { scope: "row" }, el("a", { href: `?kind=${encodeURIComponent(kind)}` }, kind)), el("td", {}, rate(success)), el("td", { class: "quiet" }, `n = ${success.n}`))))))),
    section("setup", "Set-up",
      folded(`${run.versions.length} published versions`, pairs(run.versions.map(({ version, published }) => [`v${version}`, when(published)]))),
      folded(`${run.config.length} settings, as resolved`, pairs(run.config)),
      folded(`${Object.keys(run.packages).length} package versions`, pairs(Object.entries(run.packages)))));
  await list.start();
}

// ------------------------------------------------------------------ episodes

async function showEpisode(name, id) {
  const other = new URLSearchParams(location.search).get("with");
  const address = (episode) => `${apiPath(name)}/episodes/${encodeURIComponent(episode)}`;
  const [episode, second] = await Promise.all([read(address(id)), other ? read(address(other)) : null]);
  const page = (target, beside) => `${runPath(name)}/episodes/${encodeURIComponent(target)}${beside ? `?with=${encodeURIComponent(beside)}` : ""}`;
  head(id, [["Runs", "/runs"], [name, runPath(name)]], [episode.kind, episode.where]);
  const others = episode.siblings.filter(([sibling]) => sibling !== id);
  const beside = el("select", { onchange: ({ target }) => { location.href = page(id, target.value); } },
    el("option", { value: "" }, "nothing"),
    ...others.map(([sibling, sample, outcome]) => el("option", { value: sibling, selected: sibling === other }, `sample ${sample} ${MARK[outcome]}`)));
  const tools = el("div", { class: "tools" },
    el("span", {}, "Group: ", episode.siblings.flatMap(([sibling, sample, outcome]) => [
      sibling === id ? el("b", {}, `${MARK[outcome]} ${sample}`) : el("a", { href: page(sibling), title: `sample ${sample}: ${outcome}` }, `${MARK[outcome]} ${sample}`), " "])),
    others.length ? el("label", {}, "Beside it", beside) : null,
    el("a", { class: "button", href: `${address(id)}/export.html`, download: "" }, "Export as HTML"),
    el("a", { class: "button", href: `${address(id)}/export.gif`, download: "" }, "Export as GIF"));
  const show = (shown) => el("article", { class: "detail", "aria-label": `Episode ${shown.id}` },
    ...present([shown.problems.length ? el("ul", { class: "bad" }, shown.problems.map((problem) => el("li", {}, problem))) : null]),
    ...episodeDetail(shown, { episodes: [shown], images: shown.images }, (target) => { location.href = page(target); }));
  const first = show(episode);
  if (second === null) {
    main.replaceChildren(tools, first);
  } else {
    const next = show(second);
    const [text, at] = firstDifference(episode, second);
    for (const article of [first, next]) article.querySelectorAll(".step")[at]?.classList.add("differs");
    main.replaceChildren(tools, el("p", { class: "notice" }, text), el("div", { class: "pair" }, first, next));
    const top = [first, next].map((article) => article.querySelectorAll(".step")[at]);
    if (top[0] && top[1]) alignTops(...top);
  }
}

/** Say where two episodes part: the first step whose page, response or action differs. */
function firstDifference(one, other) {
  const steps = Math.max(one.steps.length, other.steps.length);
  for (let at = 0; at < steps; at += 1) {
    const [a, b] = [one.steps[at], other.steps[at]];
    if (!a || !b) return [`Equal for ${at} steps; then one has ended.`, at];
    const differs = [a.shot !== b.shot && "page", a.response !== b.response && "response", a.say !== b.say && "action"].filter(Boolean);
    if (differs.length) return [`They differ first in step ${at + 1}: ${differs.join(", ")}.`, at];
  }
  return ["All their steps are equal.", -1];
}

/** Move the first different steps of two columns to the same height. */
function alignTops(one, other) {
  const by = one.getBoundingClientRect().top - other.getBoundingClientRect().top;
  (by > 0 ? other : one).style.marginTop = `${Math.abs(by)}px`;
}

const [, , run, , episode] = location.pathname.split("/").map(decodeURIComponent);
if (!episode) new FlowRuns(document.getElementById("flow-runs"), document.getElementById("changes"), (flowRun) => !run || flowRun.run === run);
try {
  if (episode) await showEpisode(run, episode);
  else if (run) await showRun(run);
  else await showRuns();
} catch (error) {
  main.replaceChildren(el("p", { class: "bad" }, error.message));
}
