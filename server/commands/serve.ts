import { startStudio } from '../main.ts';
import { readArguments } from './arguments.ts';
import { onPress } from './one-press.ts';
import { UsageError } from './usage.ts';

/** `serve`: the studio, until SIGINT or SIGTERM; then it ends the process, since Next's development server would not. */
export async function serve(args: string[]): Promise<number> {
  const settings = serveSettings(args, process.env);
  // The first start of the pages takes a while on a busy machine.
  process.stdout.write('  Starting the studio: its data folder, its pages …\n');
  const studio = await startStudio(settings);
  const query = settings.token === null ? '' : '/?token=…';
  process.stdout.write(`Shard Studio is at ${studio.address}${query}\n`);
  return new Promise(() => {
    const close = () => {
      process.stdout.write('Stopping; runs end after their step. Once more to end them at once.\n');
      studio.close().then(
        () => process.exit(0),
        (error: Error) => {
          process.stderr.write(`${error.stack}\n`);
          process.exit(1);
        },
      );
    };
    const press = onPress(close, () => studio.kill());
    process.on('SIGINT', press).on('SIGTERM', press);
  });
}

/** What the flags and, where they are silent, the environment say. Throws UsageError. */
export function serveSettings(args: string[], env: Readonly<Record<string, string | undefined>>) {
  const { values } = readArguments({
    args,
    options: {
      host: { type: 'string', default: env.HOST || '127.0.0.1' },
      port: { type: 'string', default: env.PORT || '3000' },
      data: { type: 'string', default: env.STUDIO_DATA || 'data' },
      token: { type: 'string', default: env.STUDIO_TOKEN },
      dev: { type: 'boolean', default: false },
    },
  });
  const port = /^\d{1,5}$/.test(values.port) ? Number(values.port) : Number.NaN;
  if (!(port <= 65_535)) throw new UsageError(`--port ${values.port}: a port is a whole number from 0 to 65535`);
  const token = values.token || null;
  if (token !== null && !/^[\x21-\x7e]{8,256}$/.test(token))
    throw new UsageError('--token: 8 to 256 characters, without spaces');
  const dev = values.dev || env.NODE_ENV === 'development';
  return {
    host: values.host,
    port,
    dataFolder: values.data,
    token,
    pages: dev ? ('dev' as const) : ('built' as const),
  };
}
