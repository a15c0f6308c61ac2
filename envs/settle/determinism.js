// Runs before the page's own scripts, in every document. Called as (options, clock); options are in determinism.py, clock comes of
// page_clock.js and is null where time is real. Leaves no name behind:
// what it replaces stays a native function to whoever prints it (a Proxy of it).
(options, clock) => {
  const wrap = (owner, name, apply) => {
    const native = owner[name];
    owner[name] = new Proxy(native, {apply: (target, self, args) => apply(self, args, (...given) => Reflect.apply(target, self, given))});
    return native;
  };

  if (clock) {
    const {date, since} = clock;

    // Cookies end by the browser's own clock, which is not the page's: a date becomes an age. Of an age the cookie store makes a date, by the page's
    // clock, so the rest of it is set there and then the age as a document does it.
    const cookie = Object.getOwnPropertyDescriptor(Document.prototype, "cookie");
    const age = (end) => Math.floor((end - date()) / 1000);
    const aged = (text) => (/;\s*max-age\s*=/i.test(text) ? text : text.replace(/;\s*expires\s*=([^;]*)/i, (all, end) => {
      const seconds = age(Date.parse(end));
      return Number.isNaN(seconds) ? all : `; max-age=${seconds}`;
    }));
    Object.defineProperty(Document.prototype, "cookie", {
      ...cookie, set: new Proxy(cookie.set, {apply: (target, self, [text]) => Reflect.apply(target, self, [aged(`${text}`)])}),
    });
    if (window.CookieStore) wrap(CookieStore.prototype, "set", (self, args, native) => {
      const {expires, maxAge, ...others} = Object(args[0]);
      if (typeof args[0] !== "object" || (expires ?? maxAge) == null) return native(...args);
      const {name = "", value, path = "/", domain, sameSite = "strict", partitioned} = others;
      const more = `${domain ? `; domain=${domain}` : ""}${partitioned ? "; partitioned" : ""}`;
      const text = `${name}=${value}; max-age=${maxAge ?? age(expires)}; path=${path}; samesite=${sameSite}; secure${more}`;
      return native(others).then(() => cookie.set.call(document, text));
    });

    // Frames are drawn by real time, and a page is idle between them. For scripts both are timers, 60 a (virtual) second, so that the same number of
    // them comes before a step ends.
    const later = setTimeout.bind(window), report = reportError.bind(window);
    const frameAt = (number) => Math.round(number * 1000 / 60);
    const nextFrame = () => {
      const at = since();
      let number = Math.floor(at * 60 / 1000);
      while (frameAt(number) <= at) number += 1;
      return frameAt(number) - at;
    };
    // Callbacks that wait for the same timer, so many ms after the next frame; each is called with what argument() gives.
    const queue = (after, argument) => {
      let last = 0, waiting = null, batch = null;
      const run = () => {
        batch = waiting;
        waiting = null;
        for (const callback of batch.values()) try { callback(argument()); } catch (error) { report(error); }
        batch = null;
      };
      const add = (callback) => {
        if (!waiting) {
          waiting = new Map();
          later(run, nextFrame() + after);
        }
        waiting.set(last += 1, callback);
        return last;
      };
      return {add, remove: (number) => { waiting?.delete(Number(number)); batch?.delete(Number(number)); }};
    };

    const frames = queue(0, since);
    wrap(window, "requestAnimationFrame", (self, args, native) => {
      if (typeof args[0] !== "function") return native(...args);  // throws as it should
      return frames.add(args[0]);
    });
    wrap(window, "cancelAnimationFrame", (self, args, native) => { native(...args); frames.remove(args[0]); });

    // The time that is left stands in a script that runs: a loop that waits for its end comes to it by asking.
    const idleMs = 50;
    const deadline = () => {
      let left = idleMs;
      return Object.create(IdleDeadline.prototype, {
        didTimeout: {value: false},
        timeRemaining: {value: () => Math.max(0, left--)},
      });
    };
    const idle = queue(1, deadline), cancel = cancelIdleCallback.bind(window);
    wrap(window, "requestIdleCallback", (self, args, native) => {
      if (typeof args[0] !== "function") return native(...args);
      cancel(native(() => {}, ...args.slice(1)));
      return idle.add(args[0]);
    });
    wrap(window, "cancelIdleCallback", (self, args, native) => { native(...args); idle.remove(args[0]); });

    // Smooth scrolling is drawn frame by frame as well: scripts arrive at once.
    const atOnce = (args) => args.map((arg) => (arg && typeof arg === "object" && arg.behavior ? {...arg, behavior: "instant"} : arg));
    for (const name of ["scroll", "scrollTo", "scrollBy"]) {
      for (const owner of [window, Element.prototype]) wrap(owner, name, (self, args, native) => native(...atOnce(args)));
    }
    wrap(Element.prototype, "scrollIntoView", (self, args, native) => native(...atOnce(args)));
  }

  if (options.seed !== null) {
    // SplitMix32, begun from the seed, the address (but for a port, which may be another one in each run) and the time, so that two frames do not draw the same "unique" ids.
    let state = 0x811c9dc5;
    for (const letter of `${options.seed} ${location.hostname}${location.pathname}${location.search} ${Date.now()}`) state = Math.imul(state ^ letter.codePointAt(0), 0x01000193);
    const draw = () => {
      state = (state + 0x9e3779b9) | 0;
      let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
      mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
      return (mixed ^ (mixed >>> 15)) >>> 0;
    };
    const fill = (bytes) => { for (let i = 0; i < bytes.length; i += 1) bytes[i] = draw() & 255; return bytes; };
    wrap(Math, "random", () => ((draw() >>> 5) * 67108864 + (draw() >>> 6)) / 9007199254740992);
    wrap(Crypto.prototype, "getRandomValues", (self, args, native) => {
      const array = native(...args);  // throws as it should
      fill(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
      return array;
    });
    if (Crypto.prototype.randomUUID) wrap(Crypto.prototype, "randomUUID", (self, args, native) => {
      native(...args);
      const bytes = fill(new Uint8Array(16));
      bytes[6] = (bytes[6] & 15) | 64;
      bytes[8] = (bytes[8] & 63) | 128;
      const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
      return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
    });
  }
}
