// Runs before the page's own scripts in every document, in an isolated world. Records are small: the reader asks once a step.
(() => {
  if (globalThis.rollwrightSignals) return; // a session that was bound anew runs it again
  const KEPT = 20; // shifts and long tasks kept one by one between two readings
  const state = {fp: null, fcp: null, lcp: null};
  let fresh;
  const clear = () => { fresh = {shift: 0, inputShift: 0, shifts: [], tasks: [], interactions: {}}; };
  clear();
  // Inputs come stamped by real time, and with a held clock a frame is drawn long after the change that it shows. So both are timed here by the page's
  // clock: a shift is as old as the last change before its frame.
  const INPUT_MS = 500; // of the definition of CLS
  const KEPT_TIMES = 1000;
  const inputs = [], changes = [];
  const noting = times => () => {
    const now = performance.now();
    if (times.at(-1) !== now) times.push(now);
    if (times.length > KEPT_TIMES) times.shift();
  };
  for (const type of ["pointerdown", "mousedown", "click", "keydown"]) addEventListener(type, e => { if (e.isTrusted) noting(inputs)(); }, {capture: true, passive: true});
  addEventListener("load", noting(changes), true);
  document.fonts.addEventListener("loadingdone", noting(changes));
  new MutationObserver(noting(changes)).observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  let shown = 0; // when the frame of the shift before was drawn
  const afterInput = e => {
    const changed = changes.findLast(at => at > shown && at <= e.startTime) ?? e.startTime;
    shown = e.startTime;
    const input = inputs.findLast(at => at <= changed);
    return e.hadRecentInput || (input !== undefined && changed - input <= INPUT_MS);
  };
  const name = node => !node ? "" : node.nodeType === 1 ? node.localName + (node.id ? "#" + node.id.slice(0, 40) : "") : name(node.parentElement);
  const take = {
    paint: e => { state[e.name === "first-paint" ? "fp" : "fcp"] = e.startTime; },
    "largest-contentful-paint": e => { state.lcp = {element: name(e.element), size: e.size, ms: e.startTime}; },
    "layout-shift": e => {
      const input = afterInput(e);
      fresh[input ? "inputShift" : "shift"] += e.value;
      if (fresh.shifts.length < KEPT)
        fresh.shifts.push({value: e.value, after_input: input, sources: (e.sources || []).map(s => name(s.node)).filter(Boolean)});
    },
    longtask: e => { if (fresh.tasks.length < KEPT) fresh.tasks.push(e.duration); },
    event: e => { if (e.interactionId) fresh.interactions[e.interactionId] = Math.max(e.duration, fresh.interactions[e.interactionId] || 0); },
  };
  const observers = Object.keys(take).map(type => {
    const use = entries => entries.forEach(take[type]);
    const observer = new PerformanceObserver(list => use(list.getEntries()));
    observer.observe({type, buffered: true, durationThreshold: 16});
    return () => use(observer.takeRecords()); // what a stopped clock has not delivered
  });
  globalThis.rollwrightSignals = () => {
    for (const drain of observers) drain();
    const said = {...state, ...fresh, interactions: Object.values(fresh.interactions)};
    clear();
    return said;
  };
})();
