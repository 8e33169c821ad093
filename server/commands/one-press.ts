/** One Ctrl-C may come twice: from the terminal, and passed on by npm. */
const SAME_PRESS_MS = 500;

/**
 * What a signal does: `first` when it comes, `again` each time that it comes after that, but for what comes so soon that it
 * is the same key press.
 */
export function onPress(first: () => void, again: () => void, nowMs = () => performance.now()): () => void {
  let firstMs: number | null = null;
  return () => {
    if (firstMs === null) {
      firstMs = nowMs();
      first();
    } else if (nowMs() - firstMs > SAME_PRESS_MS) again();
  };
}
