// Runs before the scripts of every document and worker whose clock is virtual, and gives {date, since}. Called as (behind, skipped): the name of
// an event by which dates are set forward, which is a secret, and how far they are at first. Null where it has run before. What it replaces stays a native function to
// whoever prints it (a Proxy of it).
(behind, skipped) => {
  // The clock stands while a script runs, so one that waits for it in a loop would never end. Who reads it often at one moment sees it move, and it
  // never goes back: the document's clock stays ahead by what its scripts have waited. Without a limit a loop that never ends would leave it years ahead.
  const FREE = 1000, PER_MS = 100, MAX_MS = 10000;  // readings at one moment before it moves, readings a millisecond, and how far
  const NativeDate = Date, native = Date.now;
  // The first navigation of a window may keep what it has but for its listeners.
  const known = behind && Reflect.apply(native, behind, []);
  if (known?.listen) {
    known.listen();
    return null;
  }
  let moment = native(), readings = 0, ahead = 0;
  const now = () => {
    const at = native();
    if (at !== moment) {
      moment = at;
      readings = 0;
    } else if ((readings += 1) > FREE && readings % PER_MS === 0 && readings <= FREE + PER_MS * MAX_MS) ahead += 1;
    return at + ahead;
  };
  // Dates alone follow the real time while a page stands, as on a computer that slept: timers and performance.now() do not.
  const date = () => now() + skipped;
  const listen = () => addEventListener(behind, (event) => { skipped = Math.max(skipped, event.detail); });
  if (behind) listen();
  Date.now = new Proxy(native, {apply: (target, self) => (behind && self === behind ? {listen} : date())});
  globalThis.Date = new Proxy(NativeDate, {
    apply: () => new NativeDate(date()).toString(),
    construct: (target, args, made) => Reflect.construct(target, args.length ? args : [date()], made),
  });
  NativeDate.prototype.constructor = Date;

  const zoned = globalThis.Temporal?.Now.zonedDateTimeISO;
  const kinds = {zonedDateTimeISO: "", instant: "toInstant", plainDateISO: "toPlainDate", plainTimeISO: "toPlainTime", plainDateTimeISO: "toPlainDateTime"};
  for (const [name, kind] of Object.entries(zoned ? kinds : {})) {
    const apply = (target, self, args) => {
      const moved = zoned(...args).add({milliseconds: date() - native()});
      return kind ? moved[kind]() : moved;
    };
    Temporal.Now[name] = new Proxy(Temporal.Now[name], {apply});
  }

  // The zero of a document or worker and the time stamps of its events come from outside, by real time. The milliseconds of Date are exact; those of
  // performance.now() are blurred on purpose.
  const origin = now(), since = () => now() - origin;
  const once = (make) => {
    const made = new WeakMap();
    return (key) => made.get(key) ?? (made.set(key, make(key)), made.get(key));
  };
  const replaced = (found, get) => new Proxy(found, {apply: (target, self) => get(self, Reflect.apply(target, self, []))});
  // The engine takes its own clock for a date, or a time of a mark or measure, that is left out.
  const dated = (found) => new Proxy(found, {apply: (target, self, args) => Reflect.apply(target, self, args[0] === undefined ? [date()] : args)});
  const bound = once(dated), formats = Intl.DateTimeFormat.prototype;
  formats.formatToParts = dated(formats.formatToParts);
  for (const [owner, name, get] of [
    [Performance.prototype, "timeOrigin", () => origin], [Event.prototype, "timeStamp", once(since)], [formats, "format", (self, found) => bound(found)],
  ]) {
    const found = Object.getOwnPropertyDescriptor(owner, name);
    Object.defineProperty(owner, name, {...found, get: replaced(found.get, get)});
  }
  Performance.prototype.now = replaced(Performance.prototype.now, since);
  // Where the engine refuses the arguments, it is given them as they are. Names of navigation timing
  // ("domComplete") count from the engine's zero, as `performance.timing` does.
  const options = (given) => given == null || Object(given) === given;
  const marked = (args) => {
    const {startTime, detail} = options(args[1]) && args[1] || {};
    return args.length && options(args[1]) && startTime === undefined ? [args[0], {startTime: since(), detail}] : args;
  };
  const measured = (args) => {
    const {start, end, duration, detail} = options(args[1]) ? args[1] || {} : {start: args[1]};
    const open = args.length && [end, duration, args[2]].every((given) => given === undefined) && (start !== undefined || detail === undefined);
    return open ? [args[0], {start, end: since(), detail}] : args;
  };
  for (const [name, timed] of [["mark", marked], ["measure", measured]])
    Performance.prototype[name] = new Proxy(Performance.prototype[name], {apply: (target, self, args) => Reflect.apply(target, self, timed(args))});
  const NativeMark = PerformanceMark;
  globalThis.PerformanceMark = new Proxy(NativeMark, {construct: (target, args, made) => Reflect.construct(target, marked(args), made)});
  NativeMark.prototype.constructor = PerformanceMark;
  return {date, since};
}
