// The grid: a cell for each place of each worker, kept in step with the workers' messages.
import { duration, operation, printable } from "./words.mjs";

export class Cells {
  /** @param root element of the grid; @param open called with a cell that a person chooses */
  constructor(root, open) {
    this.root = root;
    this.open = open;
    this.groupBy = "worker";
    this.sortBy = "place";
    this.cells = new Map(); // "worker/slot" -> cell
    this.groups = new Map(); // name of a group -> its element
    this.current = null; // key of the cell that Tab reaches
    root.addEventListener("click", (event) => this.#choose(event.target));
    root.addEventListener("keydown", (event) => this.#move(event));
    root.addEventListener("pointerover", (event) => this.#explain(event.target));
    root.addEventListener("focusin", (event) => this.#explain(event.target));
  }

  /** Take a worker's state, or its end. */
  update(state) {
    const { worker } = state;
    const slots = state.gone ? [] : state.slots;
    slots.forEach((slot, index) => {
      const key = `${worker}/${index}`;
      const cell = this.cells.get(key) ?? this.#make(key, worker, index);
      cell.slot = slot;
      cell.received = performance.now();
      this.#draw(cell);
    });
    for (let index = slots.length; this.cells.has(`${worker}/${index}`); index += 1) {
      this.#remove(`${worker}/${index}`);
    }
  }

  arrange(groupBy, sortBy) {
    this.groupBy = groupBy;
    this.sortBy = sortBy;
    for (const cell of this.cells.values()) this.#place(cell);
    this.sort();
  }

  /** Put the cells of each group in order; by place they are so already. */
  sort() {
    if (this.sortBy === "place") return;
    const key = this.sortBy === "seconds" ? (cell) => -cell.slot.seconds : (cell) => -cell.slot.step;
    for (const { list } of this.groups.values()) {
      const inOrder = [...list.children].sort((a, b) => key(a.cell) - key(b.cell));
      if (inOrder.some((element, index) => list.children[index] !== element)) list.append(...inOrder);
    }
  }

  /** Number of cells by operation, and the number of slow ones. */
  totals() {
    const counts = {};
    let slow = 0;
    for (const { slot } of this.cells.values()) {
      counts[slot.doing] = (counts[slot.doing] ?? 0) + 1;
      slow += slot.slow ? 1 : 0;
    }
    return { counts, slow, all: this.cells.size };
  }

  /** The cell before or after one, in the order that is seen. */
  neighbour(key, by) {
    const buttons = this.#buttons();
    const at = buttons.findIndex((button) => button.cell.key === key);
    return buttons.length ? buttons[(at + by + buttons.length) % buttons.length].cell : null;
  }

  focus(key) {
    this.cells.get(key)?.button.focus();
  }

  #make(key, worker, index) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.tabIndex = -1;
    item.append(button);
    const cell = { key, worker, index, item, button, slot: null, drawn: "", group: null };
    item.cell = button.cell = cell;
    this.cells.set(key, cell);
    if (this.current === null) this.#makeCurrent(cell);
    return cell;
  }

  #remove(key) {
    const cell = this.cells.get(key);
    this.cells.delete(key);
    cell.item.remove();
    this.#dropIfEmpty(cell.group);
    if (this.current === key) {
      this.current = null;
      const first = this.cells.values().next().value;
      if (first) this.#makeCurrent(first);
    }
  }

  #draw(cell) {
    const { slot, button } = cell;
    const drawn = `${slot.doing} ${slot.step} ${Boolean(slot.slow)} ${slot.kind} ${slot.version}`;
    if (cell.drawn !== drawn) {
      cell.drawn = drawn;
      const { letter, label } = operation(slot.doing);
      button.dataset.doing = slot.doing;
      button.classList.toggle("slow", Boolean(slot.slow));
      const mark = slot.doing === "idle" ? "" : `${letter}${slot.step}`;
      button.textContent = mark;
      button.ariaLabel = slot.doing === "idle"
        ? `place ${cell.index}: idle`
        : `${mark}: ${printable(slot.kind, 80)}, step ${slot.step} of ${slot.horizon}, ${label}${slot.slow ? ", slow" : ""}`;
    }
    this.#place(cell);
  }

  #place(cell) {
    const value = this.groupBy === "worker" ? cell.worker : cell.slot.doing === "idle" ? "idle" : cell.slot[this.groupBy];
    const name = this.groupBy === "version" && value !== "idle" ? `v${value}` : this.groupBy === "doing" ? operation(value).label : printable(value, 120);
    if (cell.group === name && cell.item.isConnected) return;
    const before = cell.group;
    let group = this.groups.get(name);
    if (group === undefined) group = this.#makeGroup(name);
    cell.group = name;
    // A cell that comes back to its group takes its old place in it.
    const next = this.sortBy === "place" ? [...group.list.children].find((other) => compare(other.cell, cell) > 0) : null;
    group.list.insertBefore(cell.item, next ?? null);
    if (before !== null && before !== name) this.#dropIfEmpty(before);
  }

  #makeGroup(name) {
    const section = document.createElement("section");
    const head = document.createElement("h3");
    const list = document.createElement("ul");
    head.textContent = name;
    section.append(head, list);
    const group = { section, list };
    this.groups.set(name, group);
    const next = [...this.groups.keys()].filter((other) => byNumbers(other, name) > 0).sort(byNumbers)[0];
    this.root.insertBefore(section, next === undefined ? null : this.groups.get(next).section);
    return group;
  }

  #dropIfEmpty(name) {
    const group = this.groups.get(name);
    if (group !== undefined && group.list.children.length === 0) {
      group.section.remove();
      this.groups.delete(name);
    }
  }

  #buttons() {
    return [...this.root.querySelectorAll("li > button")];
  }

  #makeCurrent(cell) {
    const before = this.cells.get(this.current);
    if (before) before.button.tabIndex = -1;
    cell.button.tabIndex = 0;
    this.current = cell.key;
  }

  #choose(target) {
    const cell = target.cell;
    if (cell === undefined) return;
    this.#makeCurrent(cell);
    this.open(cell);
  }

  #explain(target) {
    const cell = target.cell;
    if (cell === undefined || cell.slot === null) return;
    const { what } = operation(cell.slot.doing);
    const seconds = cell.slot.seconds + (performance.now() - cell.received) / 1000;
    target.title = `${printable(cell.worker, 120)}, place ${cell.index}\n${printable(cell.slot.episode_id, 200)}\n${what}, for ${duration(seconds)}`;
  }

  #move(event) {
    const cell = event.target.cell;
    if (cell === undefined) return;
    const buttons = this.#buttons();
    const at = buttons.indexOf(cell.button);
    const target = {
      ArrowRight: () => buttons[at + 1],
      ArrowLeft: () => buttons[at - 1],
      ArrowDown: () => nearest(buttons.slice(at + 1), cell.button, 1),
      ArrowUp: () => nearest(buttons.slice(0, at).reverse(), cell.button, -1),
      Home: () => buttons[0],
      End: () => buttons.at(-1),
    }[event.key]?.();
    if (target === undefined) return;
    event.preventDefault();
    this.#makeCurrent(target.cell);
    target.focus();
  }
}

/** The first button of the next row (down: 1, up: -1) that is not before the same column. */
function nearest(buttons, from, way) {
  const { left, top } = from.getBoundingClientRect();
  let row = null;
  let best = null;
  for (const button of buttons) {
    const box = button.getBoundingClientRect();
    if ((box.top - top) * way <= 1) continue;
    if (row !== null && Math.abs(box.top - row) > 1) break;
    row = box.top;
    if (best === null || Math.abs(box.left - left) < Math.abs(best.getBoundingClientRect().left - left)) best = button;
  }
  return best ?? undefined;
}

function compare(a, b) {
  return byNumbers(a.worker, b.worker) || a.index - b.index;
}

function byNumbers(a, b) {
  return a.localeCompare(b, "en", { numeric: true });
}
