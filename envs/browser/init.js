// Runs before the page's own scripts, in every document. STYLE is replaced by the site's style sheet.
(() => {
  // Remembers which elements listen for clicks, so that an observation can tell what can be clicked. Kept outside the DOM.
  const listened = new WeakSet();
  Object.defineProperty(window, Symbol.for("rollwright.clickable"), {value: listened, enumerable: false});
  const add = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...rest) {
    if ((type === "click" || type === "mousedown" || type === "mouseup") && this instanceof Element) listened.add(this);
    return add.call(this, type, ...rest);
  };
  // The blinking caret and running transitions would make equal pages give unequal screenshots.
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLE);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
})();
