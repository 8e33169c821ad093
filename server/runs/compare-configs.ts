/** The dotted paths at which configs differ, sorted; `name` is left out. A list counts as one value. */
export function differingPaths(configs: readonly unknown[]): string[] {
  const flat = configs.map((config) => flatten(config));
  const paths = new Set(flat.flatMap((leaves) => [...leaves.keys()]));
  paths.delete('name');
  return [...paths].filter((path) => new Set(flat.map((leaves) => leaves.get(path))).size > 1).sort();
}

/** Path → JSON of the value there. */
function flatten(value: unknown, path = '', leaves = new Map<string, string>()): Map<string, string> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    for (const [key, child] of Object.entries(value)) flatten(child, path ? `${path}.${key}` : key, leaves);
  } else {
    leaves.set(path, JSON.stringify(value));
  }
  return leaves;
}
