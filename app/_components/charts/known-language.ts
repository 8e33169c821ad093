/**
 * uPlot formats numbers in the browser's language while it loads, and breaks the whole page where that is not a language
 * tag: a headless browser under LANG=C says "en-US@posix". To be imported before it.
 */
if (typeof navigator !== 'undefined') {
  try {
    new Intl.NumberFormat(navigator.language);
  } catch {
    Object.defineProperty(navigator, 'language', { value: 'en-US', configurable: true });
  }
}
