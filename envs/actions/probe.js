// Questions about one node (`this`), asked in an isolated world: the page can neither see nor change the answers. Called as (what, other).
function (what, other) {
  const TEXT = ["text", "search", "email", "url", "tel", "password", "number", "date", "time", "datetime-local", "month", "week", ""];
  const squash = (text) => (text || "").replace(/\s+/g, " ").trim();
  // `element` is what a ::before or ::after belongs to.
  const above = (node) => [node.assignedSlot, node.parentNode || node.host || (!node.nodeType && node.element)].filter(Boolean);
  const slotted = (node) => this.querySelectorAll && [...this.querySelectorAll("slot")].some((s) => s.assignedNodes({flatten: true}).includes(node));
  // What has a use of its own in a label: a click on it is none on the label.
  const USABLE = "a[href], button, input, select, textarea, summary, iframe, embed, object, audio[controls], video[controls], img[usemap]";
  // A hit on anything inside of an element, slotted into it, or on its label is a hit on the element.
  const belongs = (node) => {
    const seen = new Set(), open = [[node, false]];
    while (open.length) {
      const [at, used] = open.pop();
      if (seen.has(at)) continue;
      seen.add(at);
      if (at === this || (!used && at.localName === "label" && at.control === this) || slotted(at)) return true;
      open.push(...above(at).map((each) => [each, used || (at.nodeType === 1 && at.matches(USABLE))]));
    }
    return false;
  };
  const drawn = (node) => node.getClientRects().length > 0;
  const isControl = (node) => ["input", "textarea", "select"].includes(node.localName) || node.isContentEditable ||
    ["checkbox", "radio", "switch", "menuitemcheckbox", "menuitemradio"].includes(node.getAttribute && node.getAttribute("role"));
  // What a person who points at the node means by typing, choosing or checking: the field itself, or the one that a label names.
  const control = () => {
    for (let node = this; node && node.nodeType === 1; node = node.parentElement || node.getRootNode().host) {
      if (isControl(node)) return node;
      if (node.localName === "option" && node.closest("select")) return node.closest("select");
      if (node.localName === "label" && node.control) return node.control;
    }
    const inside = this.querySelectorAll ? this.querySelectorAll("input:not([type=hidden]),textarea,select,[contenteditable]") : [];
    return inside.length === 1 ? inside[0] : this;
  };
  const checked = () => {
    if (this.localName === "input" && ["checkbox", "radio"].includes(this.type)) return this.checked;
    const said = this.getAttribute("aria-checked");
    return said === null ? null : said === "true";
  };
  const facts = () => ({
    tag: this.localName, kind: this.type || this.getAttribute("role") || "",
    disabled: this.matches(":disabled") || !!this.closest("[aria-disabled=true]"),
    editable: this.isContentEditable || this.localName === "textarea" || (this.localName === "input" && TEXT.includes(this.type)),
    readonly: !!this.readOnly, checked: checked(), text: squash(this.innerText || this.value || "").slice(0, 60),
    menu: this.localName === "select" && !this.multiple && this.size <= 1, chosen: this.selectedIndex === undefined ? -1 : this.selectedIndex,
    options: this.localName === "select" ? [...this.options].map((o) => ({text: squash(o.text), open: !o.matches(":disabled"), on: o.selected})) : null,
    // As Chromium decides it: the step, the least value or the value are not whole minutes.
    seconds: ["time", "datetime-local"].includes(this.type) &&
      (Number(this.step || 60) % 60 > 0 || [this.min, this.value].some((at) => /:\d\d:(?!00$)/.test(at || ""))),
    file: this.localName === "input" && this.type === "file", multiple: !!this.multiple,
  });
  // The setter of the prototype: what a page has put on the element itself (React's tracker) does not see it.
  const put = (value) => { Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(this, value); return this.value; };
  // A colour or range as its picker or slider sets it: value, then both events. They are a script's: the picker is a window of its own.
  const changed = () => {
    this.dispatchEvent(new Event("input", {bubbles: true, composed: true}));
    this.dispatchEvent(new Event("change", {bubbles: true}));
  };
  const setChoices = () => [...this.options].forEach((option, place) => { option.selected = other.includes(place); });
  switch (what) {
    case "value": return put(other), changed();
    case "put": return put(other);
    case "held": return this.value;
    case "range": return [Number(this.min || 0), Number(this.max || 100), this.step === "any" ? 0 : Number(this.step) || 1];
    case "choices": return setChoices();
    case "choose": return setChoices(), changed();
    case "option": return this.options[other];
    case "belongs": return belongs(other);
    case "control": return this.nodeType === 1 ? control() : this.documentElement || this.parentElement || this.element;
    case "label": return [...(this.labels || [])].flatMap((label) => drawn(label) ? label : [...label.children]).filter(drawn)[other] || null;
    case "facts": return facts();
    case "element": return this.nodeType === 1 ? this : this.element || this.parentElement || this.documentElement;
    case "show": return this.scrollIntoView({block: "nearest", inline: "nearest", behavior: "instant"});
    case "open": return this.matches(":open");
    case "preset": { const was = this.selectedIndex; this.selectedIndex = other; return was; }
    case "focused": {
      let at = this.ownerDocument.activeElement;
      while (at && at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
      return at;
    }
  }
}
