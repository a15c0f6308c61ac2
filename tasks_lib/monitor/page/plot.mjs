// uPlot, loaded when the first curve is drawn.

/** Return uPlot's class. It asks for number formats of the browser's language, and a Chromium under the POSIX locale names one
 * that does not exist ("en-US@posix"). */
export async function loadPlot() {
  try {
    new Intl.NumberFormat(navigator.language);
  } catch {
    Object.defineProperty(navigator, "language", { value: "en", configurable: true });
  }
  return (await import("./uPlot.esm.js")).default;
}
