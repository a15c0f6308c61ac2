// Active flow runs of Prefect: what waits for an approval, and what can be cancelled.
import { printable } from "./words.mjs";

const REFRESH_MS = 5000;

export class FlowRuns {
  /** @param root element of the list @param note element that says whether anything can be changed
   *  @param wants called with a flow run: is it shown here? */
  constructor(root, note, wants = () => true) {
    this.root = root;
    this.note = note;
    this.wants = wants;
    this.rows = new Map(); // id -> row
    this.refresh();
  }

  async refresh() {
    clearTimeout(this.timer);
    try {
      const answer = await fetch("/api/flow-runs");
      if (answer.ok) this.#show(await answer.json());
    } catch {
      // the page says itself that its server cannot be reached
    }
    this.timer = setTimeout(() => this.refresh(), REFRESH_MS);
  }

  #show({ read_only: readOnly, runs }) {
    this.note.textContent = readOnly ? `This page only reads: ${readOnly}.` : "Approve and Cancel go through Prefect.";
    const shown = runs.filter((run) => this.wants(run) && (run.question !== null || run.state === "Cancelling" || run.deployed));
    const known = new Set();
    for (const run of shown) {
      const same = `${run.state} ${run.question} ${readOnly}`;
      known.add(run.id);
      const before = this.rows.get(run.id);
      if (before?.same === same) continue; // a form that is being filled in stays
      const row = this.#row(run, readOnly);
      row.same = same;
      if (before) before.replaceWith(row);
      else this.root.append(row);
      this.rows.set(run.id, row);
    }
    for (const [id, row] of this.rows) {
      if (known.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    this.root.hidden = this.rows.size === 0;
  }

  #row(run, readOnly) {
    const name = printable(run.name, 200);
    const row = make("li", {}, make("b", {}, name), ` ${printable(run.state, 40)} `);
    const said = make("span", { role: "status" });
    const send = async (act, body) => {
      said.textContent = "…";
      try {
        const answer = await fetch(`/api/flow-runs/${run.id}/${act}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
        const value = await answer.json().catch(() => ({ error: `the server answers ${answer.status}` }));
        said.textContent = answer.ok ? "done" : printable(value.error);
      } catch {
        said.textContent = "the server does not answer";
      }
      this.refresh();
    };
    if (run.question !== null) row.append(make("p", { className: "question" }, `May it go on? ${printable(run.question)}`));
    if (run.question !== null && !readOnly) {
      const by = make("input", { name: "by", required: true, maxLength: 200, autocomplete: "name" });
      const reason = make("input", { name: "reason", maxLength: 2000 });
      const form = make("form", {}, make("label", {}, "Your name ", by), make("label", {}, "Reason ", reason),
        make("button", { value: "yes" }, "Approve"), make("button", { value: "no" }, "Refuse"));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        send("approve", { approved: event.submitter?.value === "yes", by: by.value, reason: reason.value });
      });
      row.append(form);
    }
    if (run.deployed && run.state !== "Cancelling" && !readOnly) {
      const cancel = make("button", { type: "button", ariaLabel: `Cancel ${name}` }, "Cancel");
      cancel.addEventListener("click", () => {
        if (confirm(`Cancel the flow run ${name}? The same parameters go on from what is committed.`)) send("cancel", {});
      });
      row.append(cancel);
    }
    row.append(" ", said);
    return row;
  }
}

function make(tag, values, ...children) {
  const element = Object.assign(document.createElement(tag), values);
  element.append(...children);
  return element;
}
