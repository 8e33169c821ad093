import { describe, expect, it } from 'vitest';
import { serveSettings } from './serve.ts';

describe('serve', () => {
  it('takes flags before the environment before the defaults', () => {
    expect(serveSettings([], {})).toEqual({
      host: '127.0.0.1',
      port: 3000,
      dataFolder: 'data',
      token: null,
      pages: 'built',
    });
    const env = { HOST: '0.0.0.0', PORT: '4000', STUDIO_DATA: '/data', STUDIO_TOKEN: 'from-environment' };
    expect(serveSettings([], env)).toMatchObject({
      host: '0.0.0.0',
      port: 4000,
      dataFolder: '/data',
      token: 'from-environment',
    });
    const args = ['--host', '::1', '--port', '0', '--data', 'd', '--token', 'from-the-flag'];
    expect(serveSettings(args, env)).toMatchObject({ host: '::1', port: 0, dataFolder: 'd', token: 'from-the-flag' });
  });

  it('serves the development pages with --dev', () => {
    expect(serveSettings(['--dev'], {}).pages).toBe('dev');
    expect(serveSettings([], { NODE_ENV: 'development' }).pages).toBe('dev');
  });

  it('refuses a port or token that cannot be', () => {
    for (const port of ['abc', '-1', '65536', '3e3', ''])
      expect(() => serveSettings([`--port=${port}`], {}), port).toThrow(/port/);
    for (const token of ['short', 'with a space', 'x'.repeat(300)])
      expect(() => serveSettings(['--token', token], {})).toThrow(/--token/);
    expect(() => serveSettings(['--prot', '3000'], {})).toThrow(/prot/);
  });
});
