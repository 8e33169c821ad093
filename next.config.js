import { fileURLToPath } from 'node:url';

/**
 * Next draws the pages and nothing else: server/ owns the port, answers /api/v1 before Next sees it, and sets the
 * security headers.
 *
 * @type {import('next').NextConfig}
 */
export default {
  reactStrictMode: true,
  poweredByHeader: false,
  // server/ compresses what is worth it; a live page gains nothing from a second pass.
  compress: false,
  // No optimiser process for the few static pictures there are.
  images: { unoptimized: true },
  // `npm test` checks the types of the whole repository; the first start must not wait for it again.
  typescript: { ignoreBuildErrors: true },
  turbopack: { root: fileURLToPath(new URL('.', import.meta.url)) },
  devIndicators: false,
};
