const MAX_LINES = 50;
const MAX_LINE_CHARS = 2000;

/** Keeps the last 50 lines of a stream of text, each cut at 2000 characters, whatever comes in. */
export class LastLines {
  readonly #lines: string[] = [];
  #rest = '';

  push(text: string): void {
    const parts = (this.#rest + text).split('\n');
    this.#rest = (parts.pop() ?? '').slice(0, MAX_LINE_CHARS);
    for (const line of parts.slice(-MAX_LINES)) this.#lines.push(line.slice(0, MAX_LINE_CHARS));
    this.#lines.splice(0, this.#lines.length - MAX_LINES);
  }

  /** Oldest first, the unfinished last one too. */
  lines(): string[] {
    return [...this.#lines, ...(this.#rest ? [this.#rest] : [])].slice(-MAX_LINES);
  }
}
