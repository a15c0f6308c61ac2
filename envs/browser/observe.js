// One read-only look at the page: what the policy may act on, in reading order. Writes nothing to the DOM.
// Called as (options) => {elements: [...], url}; options are described in observation.py.
(options) => {
  const width = innerWidth, height = innerHeight;
  const listened = window[Symbol.for("rollwright.clickable")] || new WeakSet();
  const squash = (text) => (text || "").replace(/\s+/g, " ").trim();
  const cut = (text) => squash(text).slice(0, options.labelChars).trim();
  const excluded = (el) => options.exclude && el.closest(options.exclude);
  // What an element without any text looks like: its colour if it has one, else the names its page gives it (icons are class names).
  const COLOURS = {"255,0,0": "red", "0,0,255": "blue", "128,128,0": "olive", "0,255,0": "lime", "0,0,0": "black", "255,255,255": "white",
    "128,128,128": "grey", "128,0,128": "purple", "255,165,0": "orange", "255,255,0": "yellow", "0,255,255": "cyan",
    "255,192,203": "pink", "255,0,255": "magenta", "0,128,0": "green"};
  const HUES = ["red", "orange", "yellow", "green", "green", "green", "cyan", "blue", "blue", "purple", "magenta", "red"];
  const colour = (css) => {
    const rgb = (css.match(/[\d.]+/g) || []).map(Number);
    if (rgb.length < 3 || rgb[3] === 0) return "";
    const [r, g, b] = rgb, high = Math.max(r, g, b), low = Math.min(r, g, b), span = high - low;
    const known = COLOURS[[r, g, b].join()];
    if (known || span < 16) return known || "grey";
    const sector = high === r ? (g - b) / span : high === g ? 2 + (b - r) / span : 4 + (r - g) / span;
    return HUES[Math.round(2 * ((sector + 6) % 6)) % 12];
  };
  const look = (el) => {
    const style = getComputedStyle(el);
    if (el instanceof SVGElement) return squash(`${colour(style.fill)} ${el.tagName}`);
    const classes = squash(el.className), ground = colour(style.backgroundColor);
    return [ground, /selected|active|clicked|checked/.test(classes) || !ground ? classes : ""].filter(Boolean).join(" ");
  };
  const BUTTONS = ["submit", "button", "reset", "image"];
  const ROLES = ["button", "link", "tab", "checkbox", "radio", "menuitem", "option", "switch", "treeitem"];

  const inputKind = (el) => {
    if (el.type === "hidden") return null;
    if (el.type === "checkbox" || el.type === "radio") return el.type;
    return BUTTONS.includes(el.type) ? "button" : el.type === "password" ? "password" : "input";
  };
  // What a person would call it; null when it is not made to be acted on. `native` kinds are so by their tag.
  const nativeKind = (el) => {
    switch (el.tagName) {
      case "BUTTON": case "SUMMARY": return "button";
      case "A": return el.closest("[role=tab]") ? "tab" : "link";
      case "TEXTAREA": return "textarea";
      case "SELECT": return el.size > 1 || el.multiple ? null : "select";
      case "OPTION": return el.parentElement && (el.parentElement.size > 1 || el.parentElement.multiple) ? "option" : null;
      case "INPUT": return inputKind(el);
      default: return el.isContentEditable && !(el.parentElement || {}).isContentEditable ? "input" : null;
    }
  };
  const madeClickable = (el) => {
    const role = el.getAttribute("role");
    if (el.querySelector("input,textarea,select,button,a")) return null;  // the control inside is what one acts on
    if (ROLES.includes(role)) return role;
    const pointer = () => getComputedStyle(el).cursor === "pointer" && getComputedStyle(el.parentElement || el).cursor !== "pointer";
    if (!(listened.has(el) || el.onclick || el.onmousedown || pointer())) return null;
    if (el === document.body || el === document.documentElement || el.tagName === "LABEL") return null;
    const box = el.getBoundingClientRect();
    if (box.width * box.height > options.wholeShare * width * height) return null;
    return el instanceof SVGElement ? "shape" : el.classList.contains("alink") ? "link" : "item";
  };

  const kinds = new Map();
  for (const el of document.body.querySelectorAll("*")) {
    if (el.disabled || excluded(el)) continue;
    const native = nativeKind(el);
    if (native) { kinds.set(el, native); continue; }
    const made = madeClickable(el);
    if (!made) continue;
    let up = el.parentElement;
    while (up && !kinds.has(up)) up = up.parentElement;
    if (!up || !nativeKind(up)) kinds.set(el, made);
  }

  const owner = (node) => { while (node && !kinds.has(node)) node = node.parentElement; return node; };
  const clip = (r) => {
    const x = Math.max(0, r.left), y = Math.max(0, r.top);
    return {x, y, w: Math.min(width, r.right) - x, h: Math.min(height, r.bottom) - y};
  };
  // The first point that really belongs to the element: the middle of each of its boxes, then points nearer to the corners.
  const reach = (rects, belongs) => {
    for (const rect of [...rects].slice(0, 8)) {
      const r = clip(rect);
      if (r.w < 2 || r.h < 2) continue;
      for (const [fx, fy] of [[.5, .5], [.25, .5], [.75, .5], [.5, .2], [.5, .8], [.1, .15], [.9, .85], [.9, .15], [.1, .85]]) {
        const point = [r.x + r.w * fx, r.y + r.h * fy], hit = document.elementFromPoint(point[0], point[1]);
        if (hit && belongs(hit)) return {point, box: [r.x, r.y, r.w, r.h]};
      }
    }
    return null;
  };

  const labels = new Set();  // nodes whose text is already shown as a control's label
  const sibling = (el, step) => {
    let node = el[step];
    while (node && node.nodeType === 3 && !squash(node.data)) node = node[step];
    if (!node || (node.nodeType === 1 && (owner(node) || node.querySelector("input,select,textarea,button")))) return "";
    if (node.nodeType === 1 && !["LABEL", "SPAN", "B", "STRONG", "TD", "TH"].includes(node.tagName)) return "";
    labels.add(node);
    return squash(node.textContent);
  };
  const controlLabel = (el, kind) => {
    for (const label of el.labels || []) {
      labels.add(label);
      const text = squash(label.innerText !== undefined ? label.innerText : label.textContent);
      if (text && kind !== "select") return text;
    }
    const named = squash(el.getAttribute("aria-label") || el.placeholder || el.title);
    if (named) return named;
    const sides = kind === "checkbox" || kind === "radio" ? ["nextSibling", "previousSibling"] : ["previousSibling"];
    for (const side of sides) { const text = sibling(el, side); if (text) return text; }
    return "";
  };
  const labelOf = (el, kind) => {
    if (["input", "password", "textarea", "select", "checkbox", "radio"].includes(kind)) return controlLabel(el, kind);
    if (el.classList.contains("ui-dialog-titlebar-close")) return "x";  // what its icon shows
    if (el.tagName === "INPUT") return squash(el.value);
    const text = squash(el.innerText !== undefined ? el.innerText : el.textContent);
    return text || squash(el.getAttribute("aria-label") || el.title || el.getAttribute("alt")) || look(el);
  };
  const valueOf = (el, kind) => {
    if (kind === "select") return el.selectedIndex < 0 ? "" : el.options[el.selectedIndex].text;
    if (!["input", "password", "textarea"].includes(kind)) return "";
    return el.type === "password" ? "*".repeat(el.value.length) : el.value === undefined ? el.innerText : el.value;
  };
  const isOn = (el, kind) => {
    if (kind === "checkbox" || kind === "radio") return el.checked === true || el.getAttribute("aria-checked") === "true";
    if (kind === "option") return el.selected === true || el.getAttribute("aria-selected") === "true";
    const tab = el.closest("[role=tab]");
    return !!tab && (tab.getAttribute("aria-selected") === "true" || tab.getAttribute("aria-expanded") === "true");
  };

  const found = [];
  for (const [el, kind] of kinds) {
    if (getComputedStyle(el).visibility !== "visible") continue;
    const at = reach(el.getClientRects(), (hit) => owner(hit) === el);
    if (!at) { if (el.labels) controlLabel(el, kind); continue; }
    found.push({
      tag: kind, text: cut(labelOf(el, kind)), value: cut(valueOf(el, kind)), checked: isOn(el, kind),
      focused: document.activeElement === el, point: at.point, box: at.box,
      options: kind === "select" ? [...el.options].map((o) => squash(o.text)) : null,
    });
  }

  // Short texts that belong to no control (a sum to solve, a value to read), only when they are few: long pages are for the screenshot.
  const texts = [], seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode() && texts.length <= options.textLimit) {
    const node = walker.currentNode, el = node.parentElement;
    if (!squash(node.data) || seen.has(el) || owner(el) || excluded(el) || ["SCRIPT", "STYLE"].includes(el.tagName)) continue;
    if ([...labels].some((label) => label === node || label.contains(node))) continue;
    seen.add(el);
    const range = document.createRange();
    range.selectNodeContents(node);
    const at = reach(range.getClientRects(), (hit) => hit === el);
    if (!at) continue;
    const own = [...el.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join(" ");
    texts.push({tag: "text", text: squash(own), value: "", checked: false, focused: false, ...at, options: null});
  }
  const short = texts.length <= options.textLimit && texts.every((t) => t.text.length <= options.labelChars);
  const room = Math.max(0, options.limit - found.length);
  const all = found.concat(short ? texts.slice(0, room) : []);

  const middle = (e) => e.box[1] + e.box[3] / 2;
  all.sort((a, b) => middle(a) - middle(b));
  let line = -1, top = -1e9;
  for (const e of all) { if (middle(e) - top > options.lineTolerance) { line += 1; top = middle(e); } e.line = line; }
  all.sort((a, b) => a.line - b.line || a.box[0] - b.box[0]);
  return {elements: all.slice(0, options.limit), url: location.href};
}
