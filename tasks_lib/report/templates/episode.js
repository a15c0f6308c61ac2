"use strict";
// One episode: its steps, its reward, what it was graded on. The report and `flows.view` both show it so.

// ------------------------------------------------------------------ one step

function screenshot(step, images) {
  const [width, height] = step.viewport;
  const x = (value) => `${(value / width) * 100}%`;
  const y = (value) => `${(value / height) * 100}%`;
  const marks = el("svg", { class: "marks", "aria-hidden": "true" });
  const box = (element, style) =>
    el("rect", { class: style, x: x(element.box[0]), y: y(element.box[1]), width: x(element.box[2]), height: y(element.box[3]), rx: 2 });
  const rects = new Map(step.elements.map((element) => [element.index, box(element, "hover")]));
  marks.append(...rects.values());
  const chosen = step.elements.find((element) => element.index === step.target);
  if (chosen) marks.append(box(chosen, "chosen-halo"), box(chosen, "chosen"));
  const frame = el("div", { class: "frame" });
  frame.style.aspectRatio = `${width} / ${height}`;
  frame.style.setProperty("--ratio", width / height);
  const image = images[step.shot];
  frame.append(
    image
      ? el("img", { src: image, alt: step.alt || `What the policy saw. It chose: ${step.say}` })
      : el("p", { class: "empty" }, `Screenshot ${step.shot.slice(0, 12)}…: ${step.missing}`),
    marks,
  );
  if (step.point) {
    marks.append(
      el("circle", { class: "ring-halo", cx: x(step.point[0]), cy: y(step.point[1]), r: 11 }),
      el("circle", { class: "ring", cx: x(step.point[0]), cy: y(step.point[1]), r: 11 }),
      el("circle", { class: "centre", cx: x(step.point[0]), cy: y(step.point[1]), r: 2 }),
    );
  }
  if (step.typed !== null) {
    const label = el("span", { class: "typed" }, step.typed);
    const [left, top] = step.point || (chosen ? [chosen.box[0], chosen.box[1]] : [0, 0]);
    label.style.left = `${Math.min((left / width) * 100, 70)}%`;
    label.style.top = `${(top / height) * 100}%`;
    if (top / height < 0.15) label.classList.add("below");
    frame.append(label);
  }
  return { frame, rects, landscape: width > 1.2 * height };
}

function elementTable(step, rects) {
  const rows = step.elements.map((element) => {
    const rect = rects.get(element.index);
    const state = [element.checked && "on", element.focused && "focused"].filter(Boolean).join(", ");
    return el(
      "tr",
      {
        class: element.index === step.target ? "target" : null,
        onpointerenter: () => rect.classList.add("lit"),
        onpointerleave: () => rect.classList.remove("lit"),
      },
      el("td", {}, String(element.index)),
      el("td", {}, element.tag),
      el("td", { class: "text" }, element.text, element.value && el("span", { class: "quiet" }, ` = ${element.value}`)),
      el("td", { class: "quiet" }, state),
    );
  });
  return el("div", { class: "scroll", tabindex: 0 }, el("table", { class: "elements" }, el("tbody", {}, rows)));
}

// A token's text with its spaces and line ends to be seen.
const shownText = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");

function tokenStrip(step) {
  const sum = step.tokens.reduce((total, token) => total + token[1], 0);
  const cells = step.tokens.map(([token, logprob, text]) => {
    const surprise = Math.min(4, Math.floor((1 - Math.exp(logprob)) * 5));
    return el("li", { class: `s${surprise}`, title: `token ${token}, log-prob ${logprob.toFixed(3)}, p ${Math.exp(logprob).toFixed(3)}` },
      el("span", { class: text ? "word" : "id" }, text ? shownText(text) : String(token)), el("span", {}, logprob.toFixed(2)));
  });
  return el("div", { class: "tokens" },
    el("p", { class: "quiet" }, `${step.tokens.length} tokens, log-prob ${sum.toFixed(2)} in all, ${decimals(sum / (step.tokens.length || 1), 3)} per token; darker is less expected`),
    el("ol", { tabindex: 0 }, cells));
}

function fold(summary, body, open = false) {
  return el("details", { open }, el("summary", {}, summary), body);
}

function stepCard(step, index, data, change) {
  const { frame, rects, landscape } = screenshot(step, data.images);
  const time = step.seconds;
  const card = el("section", { class: `step ${landscape ? "landscape" : ""}`, "aria-label": `Step ${index + 1}` });
  const enlarge = el("button", { type: "button", class: "plain", "aria-pressed": "false", onclick: () => {
    enlarge.setAttribute("aria-pressed", String(card.classList.toggle("large")));
  } }, "enlarge");
  card.append(
    el("div", { class: "shot" }, frame, el("p", { class: "quiet under" }, `${step.viewport[0]} × ${step.viewport[1]}`, enlarge)),
    el("div", { class: "turn" },
      el("h4", {}, `Step ${index + 1}`, el("span", { class: `act ${step.action}` }, step.say)),
      step.error && el("p", { class: "error" }, `Error shown with this step: ${step.error}`),
      el("h5", {}, "Response"),
      el("pre", { class: "response" }, step.response),
      tokenStrip(step),
      el("p", { class: "quiet" }, `policy v${step.version} · observe ${decimals(time.observe, 2)} s · generate ${decimals(time.generate, 2)} s · act ${decimals(time.act, 2)} s`),
      ...present([changesOf(change)]),
      fold(`${step.elements.length} elements`, elementTable(step, rects), step.elements.length <= 8),
      fold(`Prompt, ${step.promptTokens.toLocaleString("en")} tokens`, el("pre", {}, step.prompt)),
      el("p", { class: "quiet url" }, step.url)),
  );
  return card;
}

// ------------------------------------------------------------------ one episode

const MARK = { success: "✓", failure: "✗", abstained: "○" };

const ROLES = {
  scored: "says whether the task was done, and enters the mean",
  shaping: "enters the mean only",
  gate: "closes the mean if it does not hold",
  penalty: "is added after the mean",
};

function costOf(cost) {
  const told = [cost.seconds && `${decimals(cost.seconds, 2)} s`, cost.tokens && `${cost.tokens.toLocaleString("en")} tokens`,
    cost.dollars && `$${cost.dollars.toPrecision(3)}`];
  return told.filter(Boolean).join(", ");
}

function rewardTable(episode) {
  const later = episode.parts[0].first !== undefined;
  const rows = episode.parts.map((part) =>
    el("tr", { class: [part.value === null && "shut", later && newValue(part) && "other"].filter(Boolean).join(" ") || null },
      el("th", { scope: "row" }, part.name),
      el("td", { title: ROLES[part.role] }, part.role, part.required && " (required)"),
      later && el("td", {}, firstValue(part)),
      el("td", { class: part.holds === false && ["scored", "gate"].includes(part.role) ? "no" : null }, part.value === null ? "not available" : decimals(part.value, 2)),
      el("td", {}, part.role === "gate" ? "–" : decimals(part.weight, 2)),
      el("td", { class: "text" }, part.evidence),
      el("td", { class: "quiet" }, costOf(part.cost) || "–")));
  return el("div", { class: "scroll", tabindex: 0 }, el("table", { class: "reward" },
    el("thead", {}, el("tr", {}, ...present(["reward part", "role", later && "first", later ? "now" : "value", "weight", "evidence", "cost"]).map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows)));
}

function rewardFacts(episode) {
  const binary = { 0: "0: a part does not hold", 1: "1: all parts hold" }[episode.binary] || "not known";
  const cost = costOf(episode.cost);
  return [
    el("p", { class: "facts" }, el("span", {}, `score ${decimals(episode.score, 3)}`), el("span", {}, episode.score === null ? "unknown" : episode.passed ? "passed" : "not passed"),
      el("span", {}, `binary ${binary}`), cost && el("span", {}, `cost ${cost}`), episode.wall && el("span", {}, "wall: ", el("code", {}, episode.wall)),
      episode.rubric && el("span", {}, "rubric ", el("code", { title: episode.rubric }, episode.rubric.slice(0, 10)))),
    episode.abstained && el("p", { class: "error" }, `No reward: ${episode.abstained}`),
    episode.failed.length ? el("ul", { class: "failed", "aria-label": "What was not met" }, ...episode.failed.map((each) => el("li", {}, each))) : null,
    episode.parts.length ? rewardTable(episode) : episode.missing ? null : el("p", { class: "empty" }, "No reward part."),
  ];
}

function episodeDetail(episode, data, open) {
  const twins = data.episodes.filter((other) => other.task === episode.task && other.seed === episode.seed && other.id !== episode.id);
  const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
  return present([
    el("header", {},
      el("p", { class: "eyebrow" }, `${episode.kind} · ${episode.where}`),
      el("h3", { dir: "auto" }, episode.instruction || "(no instruction)"),
      el("p", { class: "facts" },
        el("span", { class: `outcome ${episode.outcome}` }, `${MARK[episode.outcome]} ${episode.outcome}`),
        ...turned(episode).map((grade) => el("span", { class: `outcome ${grade.outcome}` }, `→ ${MARK[grade.outcome]} ${grade.outcome}, graded again`)),
        el("span", {}, `score ${decimals(episode.score, 2)}`), el("span", {}, "stopped: ", el("code", {}, episode.stop)),
        el("span", {}, `${episode.steps.length} step${episode.steps.length === 1 ? "" : "s"}`), el("span", {}, `${decimals(episode.seconds, 1)} s`)),
      episode.abstained && el("p", { class: "error" }, `Abstained: ${episode.abstained}`),
      episode.error && episode.error !== episode.abstained && el("p", { class: "error" }, episode.error),
      twins.length ? el("p", { class: "twins" }, "Same page: ", ...twins.map((twin) =>
        el("button", { type: "button", class: "plain", onclick: () => open(twin.id) }, `${MARK[twin.outcome]} ${twin.where}, sample ${twin.sample}`))) : null),
    ...episode.steps.map((step, index) => stepCard(step, index, data, episode.changes[index])),
    lastPage(episode, data),
    el("section", { class: "after" },
      ...(episode.answer ? [el("h4", {}, "Answer"), el("pre", { class: "given" }, episode.answer)] : []),
      el("h4", {}, "Reward"),
      ...present(rewardFacts(episode)),
      ...gradedOn(episode),
      ...laterSections(episode),
      fold("Identity and page facts", el("dl", { class: "pairs" }, fact("episode", episode.id), fact("group", episode.group),
        fact("task", episode.task), fact("seed", String(episode.seed)), fact("sample", String(episode.sample)),
        fact("attempt", String(episode.attempt)), fact("policy", `v${episode.version}`), fact("shown as", episode.reason),
        ...episode.facts.map(([name, value]) => fact(name, value))))),
  ]);
}
