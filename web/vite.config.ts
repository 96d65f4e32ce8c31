import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';
import { play } from './scripts/play.mjs';

/** Address of a running Larder for `npm run dev`; without it, the fixture that STATE names is played. */
const { LARDER, STATE = 'busy', VITEST } = process.env;

export default defineConfig({
  plugins: [svelte(), ...(LARDER || VITEST ? [] : [play(STATE)])],
  // Relative addresses, so that the page also works behind a proxy that adds a prefix.
  base: './',
  build: {
    target: 'es2022',
    // Every asset is a file: the page is served with `default-src 'self'`, which forbids data: addresses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    port: 5173,
    ...(LARDER ? { proxy: { '/api': LARDER, '/healthz': LARDER } } : {}),
  },
  // Stores are tested with the runes that run in a browser, not with those of server-side rendering.
  resolve: VITEST ? { conditions: ['browser'] } : {},
  test: { include: ['src/**/*.test.ts'], environment: 'node' },
});
