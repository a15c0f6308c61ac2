"use strict";
// The list of the report's episodes and its filters.

const address = (id) => `#episode=${encodeURIComponent(id)}`;

function startViewer(data) {
  const list = document.getElementById("list");
  const detail = document.getElementById("detail");
  const selects = [...document.querySelectorAll("[data-facet]")];
  let current = null;

  const open = (id, { remember = true, scroll = false } = {}) => {
    const episode = data.episodes.find((candidate) => candidate.id === id);
    if (!episode) return;
    current = id;
    detail.replaceChildren(...episodeDetail(episode, data, open));
    for (const button of list.querySelectorAll("button")) {
      button.setAttribute("aria-current", String(button.dataset.id === id));
    }
    if (remember) history.replaceState(null, "", address(id));
    if (scroll && matchMedia("(max-width: 800px)").matches) detail.scrollIntoView({ block: "start" });
  };

  const fill = () => {
    const shown = data.episodes.filter((episode) => selects.every((select) => !select.value || episode[select.dataset.facet] === select.value));
    list.replaceChildren(...shown.map((episode) => el("li", {}, el("button",
      { type: "button", "data-id": episode.id, "aria-current": String(episode.id === current), onclick: () => open(episode.id, { scroll: true }) },
      el("span", { class: `outcome ${episode.outcome}`, "aria-label": episode.outcome, role: "img" }, MARK[episode.outcome]),
      el("span", { class: "name" }, episode.kind,
        ...turned(episode).map((grade) => el("span", { class: `outcome ${grade.outcome}`, title: `graded again: ${grade.outcome}` }, ` → ${MARK[grade.outcome]}`))), el("span", { class: "quiet" }, episode.where.replace("evaluation of", "eval").replace("iteration", "iter"))))));
    document.getElementById("count").textContent = `${shown.length} of ${data.episodes.length}`;
    if (shown.length && !shown.some((episode) => episode.id === current)) open(shown[0].id, { remember: false });
  };

  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
    open(next.dataset.id);
  });
  for (const select of selects) select.addEventListener("change", fill);
  const follow = () => {
    const linked = data.episodes.find((episode) => location.hash === address(episode.id));
    if (!linked) return;
    open(linked.id, { remember: false });
    document.getElementById("episodes").scrollIntoView();
  };
  window.addEventListener("hashchange", follow);
  follow();
  fill();
}

const episodes = document.getElementById("episode-data");
if (episodes) startViewer(JSON.parse(episodes.textContent));
