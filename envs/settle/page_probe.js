// Runs in a world of its own: the page sees none of it. Run once a document; then called as rollwrightLook(options), which gives a promise of
// {now, changed, animating, ready, focus, modal, picker, mixed, invalid, hidden}. The options are in watch.py; fields.js has been run before.
globalThis.rollwrightLook = (options) => {
  const key = Symbol.for("rollwright.watch");
  const scroll = () => `${scrollX},${scrollY},${document.readyState}`;
  const watch = globalThis[key] ??= (() => {
    const made = {changes: 1, scroll: "", wake: null};  // a document that is seen for the first time is news
    made.observer = new MutationObserver((records) => { made.changes += records.length; made.wake?.(); });
    made.observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
    return made;
  })();
  const {fields, path, picker} = rollwrightFields;
  // Which element has the keyboard focus, as far as a script can see. null is the page itself.
  const focus = () => {
    let at = document.activeElement;
    while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
    return at && at !== document.body ? path(at) : null;
  };
  // The dialog that keeps all else from being used: of several the one that has the focus, else the last.
  const modal = () => {
    const open = [...document.querySelectorAll("dialog:modal")];
    return open.length ? path(open.find((each) => each.contains(document.activeElement)) ?? open.at(-1)) : null;
  };
  const report = () => {
    const changed = watch.changes + watch.observer.takeRecords().length > 0 || scroll() !== watch.scroll;
    watch.changes = 0;
    watch.scroll = scroll();
    const animating = document.getAnimations().some((animation) => animation.playState === "running");
    return {now: Date.now(), changed, animating, ready: document.readyState, focus: focus(), modal: modal(), picker: picker(document),
      ...(options.fields ? fields() : {})};
  };
  if (options.clock) return {now: Date.now(), changed: false, animating: false, ready: document.readyState};
  // A document that is still being read may have nothing to draw yet.
  if (options.frame && document.readyState !== "loading") {
    return new Promise((resolve) => requestAnimationFrame(() => resolve(report())));
  }
  if (!options.quietMs) return report();
  // Until nothing has changed for quietMs of the page's time; only for pages whose clock runs.
  return new Promise((resolve) => {
    let timer;
    const begin = () => { clearTimeout(timer); timer = setTimeout(() => { watch.wake = null; resolve(report()); }, options.quietMs); };
    watch.wake = begin;
    begin();
  });
};
