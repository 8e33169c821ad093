/** Standard output and standard error of a command whose reader may leave (`… | head`): then there is nobody to print for. */

type Broken = (error: NodeJS.ErrnoException) => void;

/** A command that only prints is done when its reader has what it wanted; anything else that fails is a failure. */
const exitNow: Broken = ({ code }) => process.exit(code === 'EPIPE' ? 0 : 1);

let onBroken: Broken = exitNow;

/** Hears of both outputs from the start of a command on. */
export function watchOutput(): void {
  for (const stream of [process.stdout, process.stderr]) stream.on('error', (error) => onBroken(error));
}

/** From here on `action` ends the command's work, the first time that an output breaks; nothing is printed there any more. */
export function whenOutputBreaks(action: () => void): void {
  let told = false;
  onBroken = () => {
    if (told) return;
    told = true;
    action();
  };
}

/** A line with text from a file in it, as a terminal may show it: control characters, and those that turn text around, escaped. */
export function printable(line: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not reach a terminal
  return line.replaceAll(/[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g, (character) => {
    return `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;
  });
}

/** The same of a text of several lines, such as an error that names a file. */
export function printableLines(text: string): string {
  return text.split('\n').map(printable).join('\n');
}
