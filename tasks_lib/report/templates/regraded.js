"use strict";
// The grades that an episode was given later, under its first one. Text only, as everywhere.

function laterSections(episode) {
  return (episode.later || []).map((grade) => el("section", { class: "later", "aria-label": `Graded again: ${grade.name}` },
    el("h4", {}, "Graded again: ", el("code", {}, grade.name), el("span", { class: "quiet" }, ` ${grade.when}`)),
    el("p", { class: "facts" },
      el("span", { class: `outcome ${episode.outcome}` }, `${MARK[episode.outcome]} ${episode.outcome}`), "→",
      el("span", { class: `outcome ${grade.outcome}` }, `${MARK[grade.outcome]} ${grade.outcome}`), el("span", {}, grade.change)),
    ...present(rewardFacts(grade)),
    grade.missing ? el("p", { class: "quiet" }, `Its parts: ${grade.missing}`) : null,
    ...present([factsFold(grade.rubricFacts), ...judgeSection(grade.judgement)])));
}

// What a part was worth first; only a later grade has parts that know.
function firstValue(part) {
  if (!part.first.length) return "–";
  return part.first[0] === null ? "not available" : decimals(part.first[0], 2);
}

const newValue = (part) => (part.first[0] ?? null) !== part.value;

// The newest grade, if it is another outcome than the first.
const turned = (episode) => (episode.later || []).slice(0, 1).filter((grade) => grade.outcome !== episode.outcome);
