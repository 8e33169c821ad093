/** Reads `--name value` among a benchmark's arguments; `otherwise` where it is left out. */
export function optionsOf(args: readonly string[]): (name: string, otherwise: string) => string {
  return (name, otherwise) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
}
