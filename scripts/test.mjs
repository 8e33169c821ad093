// What `npm test` runs: every check there is, in the order of what they cost. `--only lint|types|unit|e2e` runs one kind.
import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import { cache, root } from './paths.mjs';
import { duration, runProgram, runScript, SetupError } from './process.mjs';
import { checkPlatform, ensureBuilt, ensureGenerated, ensureInstalled } from './setup.mjs';

const minuteMs = 60_000;
const env = { ...process.env, NEXT_TELEMETRY_DISABLED: '1' };
const reports = path.join(cache, 'reports');

/** One kind of check: a heading, and what runs it. `run` gives the tests counted, and whether all is well. */
const kinds = {
  lint: {
    heading: 'Format and lint (Biome; ESLint for React hooks and Next)',
    run: async () =>
      passIf((await node('@biomejs/biome/bin/biome', ['check'])) & (await node('eslint/bin/eslint.js', ['app']))),
  },
  types: {
    heading: 'Types (tsc)',
    run: async () =>
      passIf((await node('next/dist/bin/next', ['typegen'])) && (await node('typescript/bin/tsc', ['--noEmit']))),
  },
  unit: {
    heading: 'Unit and integration tests, import law (Vitest)',
    run: async () => {
      const report = freshReport('vitest.json');
      const args = ['run', '--reporter=default', '--reporter=json', `--outputFile.json=${report}`];
      const ok = await node('vitest/vitest.mjs', args, { timeoutMs: 60 * minuteMs });
      return { ok, ...countVitest(readReport(report)) };
    },
  },
  e2e: {
    heading: 'The studio in a real browser (Playwright)',
    run: async () => {
      await ensureBuilt();
      const report = freshReport('playwright.json');
      const args = ['test', '--reporter=list,json'];
      const ok = await node('@playwright/test/cli.js', args, {
        timeoutMs: 60 * minuteMs,
        env: { ...env, PLAYWRIGHT_JSON_OUTPUT_FILE: report },
      });
      return { ok, ...countPlaywright(readReport(report)) };
    },
  },
};

await runScript(async () => {
  const chosen = chosenKinds(process.argv.slice(2));
  const started = performance.now();
  checkPlatform();
  await ensureInstalled();
  await ensureGenerated();

  const results = [];
  for (const name of chosen) {
    const from = performance.now();
    process.stdout.write(`\n── ${kinds[name].heading} ${'─'.repeat(Math.max(3, 76 - kinds[name].heading.length))}\n`);
    results.push({ name, ...(await runKind(kinds[name])), ms: performance.now() - from });
  }

  process.stdout.write(`\n── Summary ${'─'.repeat(69)}\n`);
  for (const { name, ok, passed, failed, skipped, ms } of results) {
    const counts = passed + failed + skipped ? `  ${passed} passed, ${failed} failed, ${skipped} skipped` : '';
    console.log(`  ${name.padEnd(6)} ${ok ? 'ok    ' : 'FAILED'} ${duration(ms).padStart(12)}${counts}`);
  }
  console.log(`  total         ${duration(performance.now() - started).padStart(12)}`);
  const sum = (key) => results.reduce((total, result) => total + result[key], 0);
  // The machines that run this read the last line.
  if (chosen.some((name) => name === 'unit' || name === 'e2e'))
    console.log(`${sum('passed')} passed, ${sum('failed')} failed`);
  if (results.some(({ ok }) => !ok)) process.exitCode = 1;
});

function chosenKinds(args) {
  const names = Object.keys(kinds);
  if (args.length === 0) return names;
  if (args.length === 2 && args[0] === '--only' && names.includes(args[1])) return [args[1]];
  throw new SetupError(`usage: npm test [-- --only ${names.join('|')}]`);
}

/** A kind that cannot even start is one that failed; the other kinds still run. */
async function runKind(kind) {
  try {
    return await kind.run();
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    console.error(error.message);
    return { ok: false, passed: 0, failed: 1, skipped: 0 };
  }
}

async function node(script, args, { timeoutMs = 10 * minuteMs, env: withEnv = env } = {}) {
  const { code } = await runProgram(process.execPath, [path.join(root, 'node_modules', script), ...args], {
    env: withEnv,
    timeoutMs,
  });
  return code === 0;
}

function passIf(ok) {
  return { ok: Boolean(ok), passed: 0, failed: 0, skipped: 0 };
}

function freshReport(name) {
  const file = path.join(reports, name);
  mkdirSync(cache, { recursive: true, mode: 0o700 });
  mkdirSync(reports, { recursive: true });
  rmSync(file, { force: true });
  return file;
}

/** The report, or null if the runner ended before it wrote one. */
function readReport(file) {
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (error) {
    if (error.code === 'ENOENT' || error instanceof SyntaxError) return null;
    throw error;
  }
}

function countVitest(report) {
  if (!report) return { passed: 0, failed: 1, skipped: 0 };
  // A file that could not be loaded ran no test: it counts as one that failed.
  const unloaded = report.testResults.filter((file) => file.status === 'failed' && file.assertionResults.length === 0);
  return {
    passed: report.numPassedTests,
    failed: report.numFailedTests + unloaded.length,
    skipped: report.numPendingTests + report.numTodoTests,
  };
}

function countPlaywright(report) {
  if (!report) return { passed: 0, failed: 1, skipped: 0 };
  const { expected, flaky, unexpected, skipped } = report.stats;
  return { passed: expected + flaky, failed: unexpected + report.errors.length, skipped };
}
