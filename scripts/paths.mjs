import path from 'node:path';
import { fileURLToPath } from 'node:url';

/** The root of the checkout, absolute, without a slash at its end. */
export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');

/** What is made from the packages and may be made again; `npm ci` empties it with node_modules. */
export const cache = path.join(root, 'node_modules', '.cache', 'shard-studio');
