import type { Plugin } from 'vite';

/** Answers requests of the API from the fixture of that name. */
export function play(state: string): Plugin;
