import { type PyValue, sequenceItems } from './python-value.ts';

interface Frame {
  readonly value: object;
  readonly children: object[];
  /** Containers inside each other from here down. */
  depth: number;
  /** Values from here down, a shared one counted each time. */
  nodes: number;
}

/**
 * What is wrong with a tree that came out of a file, or undefined: a cycle, more than `maxDepth` containers inside each
 * other, or more than `maxNodes` values for a walk that does not know which are shared. After this check every walk may be
 * a plain recursion. Itself it recurses nowhere and visits each object once.
 */
export function treeFault(root: PyValue, maxDepth: number, maxNodes: number): string | undefined {
  if (root === null || typeof root !== 'object') return undefined;
  const done = new Map<object, Frame>();
  const open = new Set<object>();
  const path: Frame[] = [];
  let next: object | undefined = root;

  while (next !== undefined || path.length > 0) {
    let finished: Frame | undefined;
    if (next !== undefined) {
      if (open.has(next)) return 'a container that contains itself';
      finished = done.get(next);
      if (!finished) {
        open.add(next);
        path.push(frameOf(next));
      }
    } else {
      finished = path.pop()!;
      open.delete(finished.value);
      done.set(finished.value, finished);
    }

    const top = path.at(-1);
    if (path.length > maxDepth) return `containers more than ${maxDepth} deep`;
    if (finished && top) {
      top.depth = Math.max(top.depth, finished.depth + 1);
      top.nodes += finished.nodes;
      if (path.length - 1 + top.depth > maxDepth) return `containers more than ${maxDepth} deep`;
      if (top.nodes > maxNodes) return `more than ${maxNodes} values, shared ones counted each time`;
    }
    next = top?.children.pop();
  }
  return undefined;
}

function frameOf(value: object): Frame {
  const frame: Frame = { value, children: [], depth: 1, nodes: 1 };
  for (const item of itemsOf(value)) {
    if (item !== null && typeof item === 'object') frame.children.push(item);
    else frame.nodes++;
  }
  return frame;
}

function itemsOf(value: object): Iterable<unknown> {
  if (ArrayBuffer.isView(value)) return [];
  if (value instanceof Map) return [...value.keys(), ...value.values()];
  if (value instanceof Set) return value;
  return sequenceItems(value as PyValue) ?? Object.values(value);
}
