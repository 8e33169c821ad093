import { elementsOf, type Graph, type Value } from '../graph.ts';
import { copy } from './copy.ts';

/** A copy of a small parameter for backward, when the unit that has it may be elsewhere. */
export function keepCopy(g: Graph, parameter: Value, name: string): Value {
  const kept = g.statistics(`${name} kept`, parameter.shape);
  g.emit(copy, [parameter, kept], { n: elementsOf(parameter.shape) });
  return kept;
}
