// Runs before the page's own scripts, in every document. Adds a style sheet, which stays where the page sets others in its place.
(text) => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  const found = Object.getOwnPropertyDescriptor(Document.prototype, "adoptedStyleSheets");
  const adopt = (target, self, [sheets]) => Reflect.apply(target, self, [self === document ? [...[...sheets].filter((each) => each !== sheet), sheet] : sheets]);
  Object.defineProperty(Document.prototype, "adoptedStyleSheets", {...found, set: new Proxy(found.set, {apply: adopt})});
  document.adoptedStyleSheets = document.adoptedStyleSheets;
}
