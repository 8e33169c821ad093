// What `npm start` runs: Node built-ins only, until the packages are there.
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { root } from './paths.mjs';
import { runScript } from './process.mjs';
import { checkPlatform, ensureBuilt, ensureGenerated, ensureInstalled } from './setup.mjs';

await runScript(async () => {
  const args = process.argv.slice(2);
  const development = args[0] === '--dev';
  if (development) args.shift();

  checkPlatform();
  await ensureInstalled();
  await ensureGenerated();
  if (!development) await ensureBuilt();

  // The server takes over this process: signals and the exit code are its own, and no wrapper can leave it behind.
  process.chdir(root);
  process.env.NODE_ENV = development ? 'development' : 'production';
  process.env.NEXT_TELEMETRY_DISABLED = '1';
  const cli = path.join(root, 'server', 'cli.ts');
  process.argv = [process.execPath, cli, 'serve', ...args];
  // As if Node had been started with it: processes that the server forks inherit it.
  process.execArgv.push('--import', 'tsx');
  await import('tsx');
  await import(pathToFileURL(cli).href);
});
