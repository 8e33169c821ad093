import type { IncomingMessage } from 'node:http';
import { describe, expect, it } from 'vitest';
import { Guard, isLoopback } from './guard.ts';

const request = (headers: Record<string, string>, method = 'GET', url = '/api/v1/runs') =>
  ({ headers: { host: 'localhost:3000', ...headers }, method, url }) as unknown as IncomingMessage;
const guard = new Guard({ host: '127.0.0.1', port: 3000, token: null });
const allows = (...args: Parameters<typeof request>) => {
  try {
    guard.checkSource(request(...args));
    return true;
  } catch {
    return false;
  }
};

describe('where a request may come from', () => {
  it('takes exactly the names under which the studio is reached', () => {
    for (const host of ['localhost:3000', '127.0.0.1:3000', '[::1]:3000', 'LOCALHOST:3000'])
      expect(allows({ host })).toBe(true);
    for (const host of [
      'evil.example',
      'localhost',
      'localhost:3001',
      'localhost.evil.example:3000',
      '127.0.0.1.nip.io:3000',
      'localhost:3000.evil.example',
      '',
      '0.0.0.0:3000',
    ])
      expect(allows({ host }), host).toBe(false);
  });

  it('takes the port for granted only at 80', () => {
    const at80 = new Guard({ host: '127.0.0.1', port: 80, token: null });
    expect(() => at80.checkSource(request({ host: 'localhost' }))).not.toThrow();
  });

  it('compares an Origin as an address, not by how it begins', () => {
    expect(allows({ origin: 'http://localhost:3000' })).toBe(true);
    expect(allows({ origin: 'http://127.0.0.1:3000' })).toBe(true);
    for (const origin of [
      'null',
      'http://evil.example',
      'http://localhost:3000.evil.example',
      'http://localhost.evil.example:3000',
      'https://localhost:3000',
      'http://localhost:3001',
      'http://localhost',
      'http://user@localhost:3000',
      '',
    ])
      expect(allows({ origin }), origin).toBe(false);
  });

  it('lets another page open one of ours, and nothing else', () => {
    const opens = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document' };
    expect(allows(opens, 'GET', '/')).toBe(true);
    expect(allows(opens, 'GET', '/runs/x')).toBe(true);
    expect(allows(opens, 'GET', '/api/v1/runs')).toBe(false);
    expect(allows(opens, 'POST', '/')).toBe(false);
    expect(allows({ ...opens, 'sec-fetch-dest': 'iframe' }, 'GET', '/')).toBe(false);
    expect(allows({ ...opens, 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'script' }, 'GET', '/_next/a.js')).toBe(
      false,
    );
    expect(allows({ 'sec-fetch-site': 'same-site', 'sec-fetch-mode': 'cors' }, 'GET')).toBe(false);
    expect(allows({ 'sec-fetch-site': 'same-origin' }, 'DELETE')).toBe(true);
  });

  it('refuses a change that has a cookie and does not say where it comes from', () => {
    for (const method of ['POST', 'PUT', 'PATCH', 'DELETE']) {
      expect(allows({ cookie: 'a=b' }, method), method).toBe(false);
      expect(allows({}, method), method).toBe(true); // a program
      expect(allows({ cookie: 'a=b', origin: 'http://localhost:3000' }, method), method).toBe(true);
    }
  });

  it('knows which addresses others can reach', () => {
    expect(['localhost', '127.0.0.1', '127.3.2.1', '::1'].every(isLoopback)).toBe(true);
    expect(['0.0.0.0', '::', '192.168.1.2', 'example.org', '1270.0.0.1', '127.0.0.1.nip.io'].some(isLoopback)).toBe(
      false,
    );
  });
});

describe('who sends a request', () => {
  const secret = 'correct horse'.replace(' ', '-');
  const guarded = new Guard({ host: '127.0.0.1', port: 3000, token: secret });
  const knows = (headers: Record<string, string>) => {
    try {
      guarded.checkToken(request(headers));
      return true;
    } catch (error) {
      expect(error).toMatchObject({ code: 'unauthorized' });
      return false;
    }
  };

  it('is known by a Bearer token', () => {
    expect(knows({ authorization: `Bearer ${secret}` })).toBe(true);
    for (const authorization of ['', `Bearer ${secret}x`, 'Bearer', `Basic ${secret}`, secret])
      expect(knows({ authorization })).toBe(false);
  });

  it('is known by the cookie for which the token was exchanged once', () => {
    const exchanged = guarded.exchange(new URL(`http://studio/runs/x?tab=log&token=${secret}`));
    expect(exchanged?.location).toBe('/runs/x?tab=log');
    expect(exchanged?.cookie).toMatch(/; Path=\/; HttpOnly; SameSite=Strict/);
    expect(exchanged?.cookie).not.toContain(secret);
    const [cookie] = (exchanged?.cookie ?? '').split(';');
    expect(knows({ cookie: `other=1; ${cookie}` })).toBe(true);
    expect(knows({ cookie: `${cookie}x` })).toBe(false);
    expect(knows({ cookie: `shard-studio-3000=${secret}` })).toBe(false);
  });

  it('never leads to another site with the exchange', () => {
    expect(guarded.exchange(new URL(`http://studio//evil.example/?token=${secret}`))?.location).toBe('/evil.example/');
    expect(guarded.exchange(new URL(`http://studio/\\evil.example?token=${secret}`))?.location).toBe('/evil.example');
    expect(() => guarded.exchange(new URL('http://studio/?token=wrong'))).toThrow(/not the one/);
    expect(guarded.exchange(new URL('http://studio/'))).toBeNull();
  });
});
