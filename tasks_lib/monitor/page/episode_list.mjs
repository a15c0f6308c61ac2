// The episodes of a run: filters, a search, and rows of which only those in view are read and drawn.
/* global el -- of the report's scripts */

const HEIGHT = 28; // px of a row, as in runs.css
const PAGE = 100; // rows of one request
const MARK = { success: "✓", failure: "✗", abstained: "○" };
const SORTS = { newest: "newest first", oldest: "oldest first", longest: "most steps first", reward: "highest reward first", staleness: "stalest first" };

export class EpisodeList {
  /** @param api address of the run's JSON @param link makes the address of an episode */
  constructor(api, link) {
    this.api = api;
    this.link = link;
    this.rows = []; // rows by their place; holes are not read yet
    this.pages = new Set(); // pages that are read or being read
    this.total = 0;
    this.searched = null;
    this.round = 0;
    const given = new URLSearchParams(location.search);
    const select = (name, title, values) => el("label", {}, title, el("select", { name }, el("option", { value: "" }, "all"), values.map((value) => el("option", { selected: given.get(name) === value }, value))));
    const input = (name, title, type) => el("label", {}, title, el("input", { name, type, value: given.get(name) ?? "", min: type === "number" ? 0 : null }));
    this.selects = el("span", { class: "tools" });
    this.form = el("form", { class: "tools", role: "search" },
      input("text", "Words in instruction or response", "search"), input("task", "Task", "search"), this.selects,
      input("min_steps", "Steps from", "number"), input("min_staleness", "Staleness from", "number"), input("abstained", "Cause of abstention", "search"),
      el("label", {}, "Order", el("select", { name: "sort" }, Object.entries(SORTS).map(([value, name]) => el("option", { value, selected: given.get("sort") === value }, name)))));
    this.count = el("p", { class: "quiet", role: "status" });
    this.on = el("button", { type: "button", class: "button", hidden: true, onclick: () => this.#searchOn() }, "Search on");
    this.list = el("ul", { "aria-label": "Episodes" });
    this.box = el("div", { class: "episodes-list", tabindex: 0, role: "group", "aria-label": "Episodes; arrow keys move between them" }, this.list);
    this.element = el("div", {}, this.form, this.count, this.on, this.box);
    this.makeSelects = (facets) => this.selects.replaceChildren(select("kind", "Kind", facets.kind), select("outcome", "Outcome", facets.outcome), select("stop", "Stopped", facets.stop), select("phase", "Phase", ["training", "evaluation", ...facets.phase]));
    this.box.addEventListener("scroll", () => this.#draw());
    this.box.addEventListener("keydown", (event) => this.#move(event));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => this.start());
  }

  /** Read the list anew, with the filters of the form. */
  async start() {
    this.round += 1;
    this.rows = [];
    this.pages.clear();
    this.searched = null;
    this.box.scrollTop = 0;
    if (!this.selects.children.length) this.makeSelects((await this.#read({ offset: 0, limit: 1 }, true)).facets);
    const query = this.#query();
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    if (query.get("text")) await this.#searchOn();
    else await this.#page(0);
  }

  #query() {
    return new URLSearchParams([...new FormData(this.form)].filter(([name, value]) => value && !(name === "sort" && value === "newest")));
  }

  async #read(more, bare = false) {
    const query = bare ? new URLSearchParams() : this.#query();
    for (const [name, value] of Object.entries(more)) query.set(name, value);
    const answer = await fetch(`${this.api}/episodes?${query}`);
    const value = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(value.error ?? `the server answers ${answer.status}`);
    return value;
  }

  async #page(number) {
    if (this.pages.has(number)) return;
    this.pages.add(number);
    const round = this.round;
    try {
      const { rows, total } = await this.#read({ offset: number * PAGE, limit: PAGE });
      if (round !== this.round) return;
      rows.forEach((row, at) => { this.rows[number * PAGE + at] = row; });
      this.total = total;
      this.count.textContent = `${total.toLocaleString("en")} episodes`;
      this.on.hidden = true;
    } catch (error) {
      this.pages.delete(number);
      this.count.textContent = error.message;
    }
    this.#draw();
  }

  async #searchOn() {
    const round = this.round;
    try {
      const { rows, searched, total } = await this.#read({ offset: this.searched ?? 0, limit: PAGE });
      if (round !== this.round) return;
      this.rows.push(...rows);
      this.searched = searched;
      this.total = this.rows.length;
      this.count.textContent = `${this.rows.length.toLocaleString("en")} found in ${searched.toLocaleString("en")} of ${total.toLocaleString("en")} episodes`;
      this.on.hidden = searched >= total;
    } catch (error) {
      this.count.textContent = error.message;
    }
    this.#draw();
  }

  #draw() {
    const from = Math.max(0, Math.floor(this.box.scrollTop / HEIGHT) - 10);
    const to = Math.min(this.total, from + Math.ceil(this.box.clientHeight / HEIGHT) + 20);
    this.list.style.height = `${this.total * HEIGHT}px`;
    const focused = document.activeElement?.dataset?.at;
    const items = [];
    for (let at = from; at < to; at += 1) items.push(this.#row(at));
    this.list.replaceChildren(...items);
    if (focused !== undefined) this.list.querySelector(`[data-at="${focused}"]`)?.focus({ preventScroll: true });
    if (this.searched === null && this.total) {
      for (let page = Math.floor(from / PAGE); page * PAGE < to; page += 1) this.#page(page);
    }
  }

  #row(at) {
    const row = this.rows[at];
    const item = el("li", {}, row === undefined ? el("span", { class: "quiet" }, "…") : el("a", { href: this.link(row.episode), "data-at": at },
      el("span", { class: `outcome ${row.outcome}`, role: "img", "aria-label": row.outcome }, MARK[row.outcome]),
      el("span", {}, row.kind), el("span", { class: "quiet" }, row.where), el("span", {}, row.score === null ? "–" : row.score.toFixed(2)),
      el("span", {}, `${row.steps} st.`), el("span", {}, row.stop), el("span", { class: "quiet" }, row.abstained || row.episode)));
    item.style.top = `${at * HEIGHT}px`;
    return item;
  }

  #move(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
    if (!by || !this.total) return;
    event.preventDefault();
    const now = document.activeElement?.dataset?.at;
    const at = now === undefined ? Math.floor(this.box.scrollTop / HEIGHT) : Math.min(this.total - 1, Math.max(0, Number(now) + by));
    const top = at * HEIGHT;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + HEIGHT > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + HEIGHT - this.box.clientHeight;
    this.#draw();
    this.list.querySelector(`[data-at="${at}"]`)?.focus({ preventScroll: true });
  }
}
