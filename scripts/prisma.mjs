// Prisma's command line without its schema engine, a binary that no package contains. With a stub in its place the
// commands that need it (db push, migrate …) do nothing and exit 0, so only those that do not need it pass here.
import path from 'node:path';
import { root } from './paths.mjs';
import { runProgram, runScript, SetupError } from './process.mjs';

const allowed = ['generate', 'validate', 'format'];

await runScript(async () => {
  const [command, ...rest] = process.argv.slice(2);
  if (!allowed.includes(command) || rest.length) {
    throw new SetupError(
      `usage: node scripts/prisma.mjs ${allowed.join('|')}\nMigrations: "npm run db:migration -- NAME" writes one, the server applies them when it starts.`,
    );
  }
  const prisma = path.join(root, 'node_modules', 'prisma', 'build', 'index.js');
  const { code } = await runProgram(process.execPath, [prisma, command, '--schema', 'prisma/schema.prisma'], {
    env: {
      ...process.env,
      PRISMA_SCHEMA_ENGINE_BINARY: '/bin/true',
      PRISMA_HIDE_UPDATE_MESSAGE: '1',
      CHECKPOINT_DISABLE: '1',
    },
    timeoutMs: 4 * 60_000,
  });
  process.exitCode = code;
});
