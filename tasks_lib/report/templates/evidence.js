"use strict";
// What an episode was graded on. As everywhere on this page, it comes from pages, policies and models, and goes onto the page as text only.

function table(style, names, rows) {
  const head = el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col" }, name))));
  return el("div", { class: "scroll", tabindex: 0 }, el("table", { class: `evidence ${style}` }, head, el("tbody", {}, rows)));
}

const cell = (...text) => el("td", { class: "text" }, ...text.filter((each) => each !== "").map((each) => (each instanceof Node ? each : String(each))));

const kind = (text) => el("td", { class: "kind text" }, text);

const amount = (text) => el("td", { class: "amount" }, text);

const moreRows = (count) => (count ? el("p", { class: "quiet" }, `and ${count.toLocaleString("en")} more`) : null);

const plural = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;

const notShown = (name, value) =>
  el("p", { class: "quiet" }, `${name}: ${value.missing}`, value.blob ? el("span", {}, " (blob ", el("code", { title: value.blob }, value.blob.slice(0, 12)), ")") : null);

// ------------------------------------------------------------------ what a step changed

function changesOf(change) {
  if (!change) return null;
  if (change.missing) return notShown("What the step changed in the document", change);
  const names = ["what", "where", "before", "after"];
  const told = names.map((_, column) => column === 0 || change.rows.some((row) => row[column]));
  const rows = change.rows.map((row) => el("tr", {}, row.map((text, column) => (column ? cell(text) : kind(text))).filter((_, column) => told[column])));
  if (!rows.length && !change.more) return el("p", { class: "quiet" }, "Changed in the document: nothing");
  return fold(`Changed in the document: ${change.says}`,
    el("div", {}, table("changes", names.filter((_, column) => told[column]), rows), moreRows(change.more)));
}

// ------------------------------------------------------------------ the page after the last action

function lastPage(episode, data) {
  const page = episode.final;
  if (!page) return null;
  const said = [
    page.title && el("p", {}, page.title),
    page.error && el("p", { class: "error" }, `Error shown with this page: ${page.error}`),
    ...page.notices.map((words) => el("p", { class: "error" }, words)),
  ];
  const address = el("p", { class: "quiet url" }, page.url);
  const text = page.text ? fold("Text of the page", el("pre", {}, page.text)) : null;
  const listed = (rects) => (page.elements.length ? fold(plural(page.elements.length, "element"), elementTable(page, rects)) : null);
  if (!page.shot) {
    const marks = new Map(page.elements.map((element) => [element.index, el("rect", {})]));
    return fold("After the last action (no picture was kept)", el("div", {}, ...present([...said, address, listed(marks), text])));
  }
  const { frame, rects, landscape } = screenshot({ ...page, target: null, point: null, typed: null, alt: "The page after the last action." }, data.images);
  return el("section", { class: `step last-page ${landscape ? "landscape" : ""}`, "aria-label": "After the last action" },
    el("div", { class: "shot" }, frame),
    el("div", { class: "turn" }, el("h4", {}, "After the last action"), ...present([...said, listed(rects), text, address])));
}

// ------------------------------------------------------------------ the judge

const HOLDS = { true: "yes", false: "no", null: "abstained" };

function votesOf([ayes, noes, lost]) {
  return [`${ayes} for`, `${noes} against`, lost && `${lost} lost`].filter(Boolean).join(", ");
}

function checksTable(checks) {
  const rows = checks.rows.map(([purpose, subject, holds, votes, reason]) =>
    el("tr", { class: holds === null ? "shut" : null }, kind(purpose), cell(subject),
      el("td", { class: holds === false ? "no" : null }, HOLDS[holds]), kind(votesOf(votes) + (votes[0] && votes[1] ? " (contradicted)" : "")), cell(reason)));
  return el("div", {}, table("checks", ["question", "about", "answer", "votes", "reason"], rows), moreRows(checks.more));
}

function callsTable(calls) {
  const rows = calls.rows.map(([purpose, subject, vote, model, seconds, requests, cached, images, [prompt, completion, estimated], dollars, trouble]) =>
    el("tr", {}, kind(purpose), cell(subject), cell(vote + 1), cell(model), amount(`${decimals(seconds, 2)} s`),
      cell(cached ? "from the cache" : requests), cell(images),
      cell(`${prompt.toLocaleString("en")} + ${completion.toLocaleString("en")}`, estimated ? " (estimated)" : ""),
      amount(dollars ? `$${dollars.toPrecision(3)}` : "–"), cell(trouble || "–")));
  return el("div", {}, table("calls", ["question", "about", "vote", "model", "took", "requests", "pictures", "tokens", "dollars", "trouble"], rows),
    moreRows(calls.more));
}

function judgeSection(judged) {
  if (!judged) return [];
  if (judged.missing) return [el("h4", {}, "Judge"), notShown("What the judge was asked and said", judged)];
  const checks = judged.checks.rows.length + judged.checks.more;
  const calls = judged.calls.rows.length + judged.calls.more;
  return [
    el("h4", {}, "Judge"),
    el("p", { class: "facts" }, ...present([
      el("span", { class: `outcome ${{ passed: "success", failed: "failure" }[judged.state] || "abstained"}` }, judged.state),
      el("span", {}, `score ${decimals(judged.score, 3)}`), judged.blocked && el("span", {}, "the site was shut"),
      el("span", {}, plural(judged.requests, "request")), judged.cached ? el("span", {}, `${judged.cached} from the cache`) : null,
      costOf(judged.cost) && el("span", {}, costOf(judged.cost))])),
    el("p", { class: "text" }, judged.reason),
    checks ? fold(plural(checks, "check"), checksTable(judged.checks)) : el("p", { class: "quiet" }, "No check was decided."),
    calls ? fold(plural(calls, "call"), callsTable(judged.calls)) : el("p", { class: "quiet" }, "Nothing was asked."),
  ];
}

// ------------------------------------------------------------------ the rubric's facts, and what was read at the end

function factsFold(facts) {
  if (!facts) return null;
  if (facts.missing) return notShown("Facts of the rubric", facts);
  const count = facts.rows.length + facts.more;
  const groups = facts.groups.rows.map(([name, weight, required, description]) =>
    el("li", {}, `${name}: weight ${decimals(weight, 2)}`, required ? ", required" : null, description ? el("span", { class: "quiet" }, ` ${description}`) : null));
  const rows = facts.rows.map(([group, fact, asks, weight, value, holds, by, on]) =>
    el("tr", { class: value === null ? "shut" : null }, cell(group), cell(fact), cell(asks), amount(decimals(weight, 2)),
      el("td", { class: holds === false ? "no" : null }, value === null ? "not available" : decimals(value, 2)), cell(by), cell(on)));
  const floors = facts.floors.map(([name, floor]) => `${name} from ${decimals(floor, 2)}`);
  return fold(`Rubric: ${plural(count, "fact")} in ${plural(facts.groups.rows.length + facts.groups.more, "group")}`, el("div", {},
    el("p", { class: "quiet" }, `Passes from ${decimals(facts.threshold, 2)}`, floors.length ? `; floors: ${floors.join(", ")}` : null),
    el("ul", { class: "groups" }, groups), moreRows(facts.groups.more),
    table("rubric", ["group", "fact", "asks", "weight in it", "value", "decided by", "on"], rows), moreRows(facts.more)));
}

function recordedFold(recorded) {
  const count = recorded.rows.length + recorded.more;
  if (!count) return null;
  const rows = recorded.rows.map(([what, ...rest]) => el("tr", {}, kind(what), rest.map((text) => cell(text))));
  return fold(`Read at the end: ${plural(count, "thing")}`, el("div", {}, table("recorded", ["what", "asked", "found"], rows), moreRows(recorded.more)));
}

function gradedOn(episode) {
  return present([
    factsFold(episode.rubricFacts),
    recordedFold(episode.recorded),
    ...judgeSection(episode.judgement),
  ]);
}
