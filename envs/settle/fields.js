// Runs in a world of its own: the page sees none of it. Gives what a snapshot does not have of the fields of a page, and where elements stand.
// A form's own properties may be its fields (<input name="parentNode">), so they are read by the getters of the engine.
globalThis.rollwrightFields = (() => {
  const getter = (of, name) => Function.prototype.call.bind(Object.getOwnPropertyDescriptor(of.prototype, name).get);
  const parent = getter(Node, "parentNode"), type = getter(Node, "nodeType"), before = getter(Element, "previousElementSibling");
  const root = getter(Element, "shadowRoot"), host = getter(ShadowRoot, "host"), view = getter(Document, "defaultView");
  const MAX_ENTRIES = 100, MAX_CHARS = 200, MAX_OPTIONS = 1000;  // entries, characters: more than an observation shows
  // Places among the elements of each parent, from the document down, -1 for a step into a shadow root and -2 for one into a frame.
  const path = (at) => {
    const places = [];
    while (at && at !== document) {
      if (type(at) === Node.DOCUMENT_NODE) { places.push(-2); at = view(at)?.frameElement; continue; }
      const above = parent(at);
      if (!above) {
        if (!(at instanceof ShadowRoot)) break;
        places.push(-1); at = host(at); continue;
      }
      let place = 0;
      for (let each = at; (each = before(each));) place++;
      places.push(place);
      at = above;
    }
    return places.reverse();
  };
  const found = {mixed: [], invalid: [], hidden: [], picker: ""};
  // The list, calendar or colour chooser that is open as a window of its own: its kind. A list that the page draws itself is none.
  const drawn = (list) => [null, "::picker(select)"].every((part) => getComputedStyle(list, part).appearance === "base-select");
  const picker = (within) => [...within.querySelectorAll(":is(select, input):open")].find((each) => each.localName === "input" || !drawn(each))?.type ?? "";
  // Places of the options that a list does not show. Of a closed list nothing is laid out, but styles are computed.
  const hidden = (list) => [...list.options].flatMap((each, place) =>
    [each, each.parentElement].some((at) => at !== list && getComputedStyle(at).display === "none") ? [place] : []);
  const read = (within) => {
    for (const each of within.querySelectorAll("input[type=checkbox]:indeterminate"))
      if (found.mixed.length < MAX_ENTRIES) found.mixed.push(path(each));
    for (const each of within.querySelectorAll(":is(input, select, textarea):user-invalid"))
      if (found.invalid.length < MAX_ENTRIES) found.invalid.push([path(each), each.validationMessage.slice(0, MAX_CHARS)]);
    found.picker ||= picker(within);
    for (const each of within.querySelectorAll("select")) {
      const places = found.hidden.length < MAX_ENTRIES && each.length <= MAX_OPTIONS ? hidden(each) : [];
      if (places.length) found.hidden.push([path(each), places]);
    }
    for (const each of within.querySelectorAll("*")) {
      const inner = root(each);
      if (inner) read(inner);
    }
    for (const each of within.querySelectorAll("iframe, frame")) if (each.contentDocument) read(each.contentDocument);
  };
  // What a person sees of the page where it is scaled, or moved within its own viewport: a telephone's page, or a pinch.
  const seen = () => {
    const {scale, pageLeft, pageTop} = visualViewport;
    return scale === 1 && pageLeft === scrollX && pageTop === scrollY ? null : [scale, pageLeft, pageTop];
  };
  const fields = () => {
    found.mixed = []; found.invalid = []; found.hidden = []; found.picker = "";
    read(document);
    return {...found, view: seen()};
  };
  return {fields, path, picker};
})();
