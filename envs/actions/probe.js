// Answers questions about one node (`this`) in an isolated world: the page can neither see nor
// change the answers. It is called as (what, other).
function (what, other) {
  const TEXT = ["text", "search", "email", "url", "tel", "password", "number", "date", "time", "datetime-local", "month", "week", ""];
  const squash = (text) => (text || "").replace(/\s+/g, " ").trim();
  // `element` is the owner of a ::before or ::after.
  const above = (node) => [node.assignedSlot, node.parentNode || node.host || (!node.nodeType && node.element)].filter(Boolean);
  const slotted = (node) => this.querySelectorAll && [...this.querySelectorAll("slot")].some((s) => s.assignedNodes({flatten: true}).includes(node));
  // Elements with a use of their own in a label: a click on one is no click on the label.
  const USABLE = "a[href], button, input, select, textarea, summary, iframe, embed, object, audio[controls], video[controls], img[usemap]";
  const seen = (node, side) => { const {width, height} = node.getBoundingClientRect(); return Math.min(width, height) >= side; };
  // The editor that a page draws for a text area without a size, as in `Reach.by_editor`.
  const drawnEditor = (field) => {
    const clear = (node) => !seen(node, 2) || getComputedStyle(node).opacity <= 0.02;
    let at = field.localName === "textarea" && (clear(field) || (field.parentElement && clear(field.parentElement))) ? field.parentElement : null;
    while (at && !seen(at, 20)) at = at.parentElement;
    const place = (node) => node && node.localName !== "body" ? JSON.stringify(node.getBoundingClientRect()) : "";
    while (at && place(at) && place(at) === place(at.parentElement)) at = at.parentElement;
    return place(at) ? at : null;
  };
  // A hit on anything inside of an element, slotted into it, on its label or on its editor is a hit
  // on the element.
  const belongs = (node) => {
    const seen = new Set(), open = [[node, false]];
    while (open.length) {
      const [at, used] = open.pop();
      if (seen.has(at)) continue;
      seen.add(at);
      if (at === this || (!used && at.localName === "label" && at.control === this) || slotted(at) || (!used && at === drawnEditor(this))) return true;
      open.push(...above(at).map((each) => [each, used || (at.nodeType === 1 && at.matches(USABLE))]));
    }
    return false;
  };
  const drawn = (node) => node.getClientRects().length > 0;
  const isControl = (node) => ["input", "textarea", "select"].includes(node.localName) || node.isContentEditable || node.editContext ||
    ["checkbox", "radio", "switch", "menuitemcheckbox", "menuitemradio"].includes(node.getAttribute && node.getAttribute("role"));
  // The field that a person means who points at the node to type, choose or check: the node itself,
  // or the field that its label names.
  const control = () => {
    let used = false;
    for (let node = this; node && node.nodeType === 1; node = node.parentElement || node.getRootNode().host) {
      if (isControl(node)) return node;
      if (node.localName === "option" && node.closest("select")) return node.closest("select");
      if (node.localName === "label" && node.control && !used) return node.control;
      used ||= node.matches(USABLE);
    }
    const area = [...this.getRootNode().querySelectorAll("textarea")].find((each) => drawnEditor(each)?.contains(this));
    if (area) return area;
    const inside = this.querySelectorAll ? this.querySelectorAll("input:not([type=hidden]),textarea,select,[contenteditable]") : [];
    return inside.length === 1 ? inside[0] : this;
  };
  const checked = () => {
    if (this.localName === "input" && ["checkbox", "radio"].includes(this.type)) return this.checked;
    const said = this.getAttribute("aria-checked");
    return said === null ? null : said === "true";
  };
  const field = this.localName === "input" || this.localName === "textarea";
  const facts = () => ({
    tag: this.localName, kind: this.type || this.getAttribute("role") || "",
    disabled: this.matches(":disabled") || !!this.closest("[aria-disabled=true]"),
    editable: this.isContentEditable || !!this.editContext || this.localName === "textarea" || (this.localName === "input" && TEXT.includes(this.type)),
    rich: !!this.isContentEditable && !this.editContext, edit_context: !!this.editContext,
    limit: field ? this.maxLength : -1, length: field ? this.value.length : 0,
    readonly: !!this.readOnly, checked: checked(), text: squash(this.innerText || this.value || "").slice(0, 60),
    options: this.localName === "select" ? [...this.options].map(option) : null, chosen: this.selectedIndex ?? -1,
    drawn: this.localName === "select" && [null, "::picker(select)"].every((part) => getComputedStyle(this, part).appearance === "base-select"),
    file: this.localName === "input" && this.type === "file", multiple: !!this.multiple,
  });
  // What a list shows of an option: its label, under that of its group. Chromium lays out nothing
  // of a closed list, but computes styles.
  const option = (o) => {
    const group = o.closest("optgroup"), shown = (at) => at === this || (getComputedStyle(at).display !== "none" && shown(at.parentElement));
    return {label: squash(o.label || o.text), group: group ? squash(group.label || group.querySelector("legend")?.textContent) : "",
      open: !o.matches(":disabled"), on: o.selected, shown: shown(o)};
  };
  // Uses the setter of the prototype, which a page's setter on the element (React's tracker) does
  // not see.
  const put = (value) => { Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(this, value); return this.value; };
  // Returns the field's value, and its spelling of a wanted value; null for an invalid one.
  const canonical = (text) => {
    const before = this.value, wanted = put(this.type === "datetime-local" ? text.replace(" ", "T") : text);
    put(before);
    const same = this.type === "range" ? Math.abs(wanted - text) < 1e-9 * Math.max(1, Math.abs(wanted)) && text !== "" :
      this.type === "color" ? wanted === text.toLowerCase() : wanted !== "" || text === "";
    return [before, same ? wanted : null];
  };
  // Sets the value beside the wanted one, and returns it with the key that leads to the wanted one.
  // The two values of a date differ in one of its parts.
  const beside = (wanted) => {
    if (this.type === "range") {
      put(wanted);
      if (this.step === "any") return [wanted, null];
      this.stepDown();
      if (this.value !== wanted) return [this.value, "ArrowUp"];
      this.stepUp();
      return [this.value, "ArrowDown"];
    }
    const part = this.type === "color" ? null : this.type.includes("time") ? /(?<=^|T)\d\d:\d\d/ : /\d\d$/;
    if (!wanted || !part) return [this.value, wanted ? null : "Backspace"];
    const number = Number(wanted.match(part)[0].slice(-2)), up = number > (this.type.includes("time") ? 0 : 1);
    const other = String(up ? number - 1 : number + 1).padStart(2, "0");
    return [put(wanted.replace(part, (all) => all.slice(0, -2) + other)), up ? "ArrowUp" : "ArrowDown"];
  };
  // Returns the field's value. A time that equals the wanted one is spelled like it: the field
  // itself adds the seconds that its step asks for.
  const spelled = (wanted) => {
    const before = this.value, number = this.valueAsNumber;
    put(wanted);
    return this.valueAsNumber === number ? this.value : put(before);
  };
  // Sends both events, as a picker does. They are untrusted, as the picker is a window of its own.
  const changed = () => {
    this.dispatchEvent(new Event("input", {bubbles: true, composed: true}));
    this.dispatchEvent(new Event("change", {bubbles: true}));
  };
  // Selects the text of an editor with an EditContext, or goes to its end, where the page did not
  // do so at the keys. The keys may have moved the focus to Chromium's own selection.
  const select = () => {
    this.focus({preventScroll: true});
    this.editContext.updateSelection(other ? 0 : this.editContext.text.length, this.editContext.text.length);
  };
  // Points at which a click reaches the element, from the middle of its rectangle. A slice or a
  // line of a drawing may fill little of the rectangle.
  const reached = () => {
    const {left, top, width, height} = this.getBoundingClientRect(), root = this.getRootNode(), share = (at) => (at % 16 + 0.5) / 16;
    const tried = Array.from({length: 256}, (_, at) => [left + width * share(at), top + height * share(at >> 4)]);
    for (const line of [this, ...this.querySelectorAll("*")].filter((each) => each.getTotalLength && drawn(each))) {
      const points = Array.from({length: 16}, (_, at) => line.getPointAtLength(line.getTotalLength() * share(at)));
      tried.push(...points.map((point) => point.matrixTransform(line.getScreenCTM())).map(({x, y}) => [x, y]));
    }
    const hit = tried.map((point) => point.map(Math.round)).filter(([x, y]) => this.contains(root.elementFromPoint(x, y)));
    return hit.slice(0, 8).map(([x, y]) => [x - left - width / 2, y - top - height / 2]);
  };
  // Notes, unseen by the page, if the next key or click chose something. The choice itself does not
  // show that, as the page may change it at once.
  const listen = () => {
    this.rollwrightHeard = false;
    this.ownerDocument.defaultView.addEventListener("input", () => { this.rollwrightHeard = true; }, {capture: true, once: true});
  };
  const setChoices = () => [...this.options].forEach((option, place) => { option.selected = other.includes(place); });
  switch (what) {
    case "spelled": return spelled(other);
    case "put": return put(other);
    case "pick": return put(other), changed();
    case "empty": return put("");
    case "canonical": return canonical(other);
    case "beside": return beside(other);
    case "held": return this.matches(":focus") ? this.value : null;
    case "select": return select();
    case "range": return [Number(this.min || 0), Number(this.max || 100), this.step === "any" ? 0 : Number(this.step) || 1];
    case "choices": return setChoices();
    case "choose": return setChoices(), changed();
    case "option": return this.options[other];
    case "belongs": return belongs(other);
    case "control": return this.nodeType === 1 ? control() : this.documentElement || this.parentElement || this.element;
    case "label": return [...(this.labels || [])].flatMap((label) => drawn(label) ? label : [...label.children]).filter(drawn)[other] || null;
    case "reached": return this.nodeType === 1 ? reached() : [];
    case "facts": return facts();
    case "element": return this.nodeType === 1 ? this : this.element || this.parentElement || this.documentElement;
    case "show": return this.scrollIntoView({block: "nearest", inline: "nearest", behavior: "instant"});
    case "open": return this.matches(":open");
    case "preset": return void (this.selectedIndex = other);
    case "listen": return listen();
    case "heard": return this.rollwrightHeard;
    case "focused": {
      let at = (this.nodeType === 1 ? this.ownerDocument : this).activeElement;
      while (at && at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
      return at;
    }
  }
}
