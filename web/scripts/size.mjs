// How much JavaScript and CSS the first load costs, gzipped: the frame, and the overview with its charts. Fails above
// the budget. Run after `npm run build`.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const JS_BUDGET_BYTES = 80_000;

const dist = join(dirname(fileURLToPath(import.meta.url)), '..', 'dist');
const page = readFileSync(join(dist, 'index.html'), 'utf8');
const overview = readdirSync(join(dist, 'assets')).filter((name) => /^(Overview|Chart)-.*\.js$/.test(name)).map((name) => join('assets', name));
const named = [...overview, ...[...page.matchAll(/(?:src|href)="([^"]+\.(?:js|css))"/g)].map((match) => match[1])];

/** The file and every module that it imports at once (dynamic imports are not part of the first load). */
function reachable(path, seen = new Set()) {
  if (seen.has(path)) return seen;
  seen.add(path);
  if (!path.endsWith('.js')) return seen;
  for (const match of readFileSync(path, 'utf8').matchAll(/(?:from|import)\s*"(\.[^"]+\.js)"/g)) {
    reachable(join(dirname(path), match[1]), seen);
  }
  return seen;
}

const files = new Set(named.flatMap((name) => [...reachable(join(dist, name))]));
const totals = { js: 0, css: 0 };
for (const file of [...files].sort()) {
  const bytes = gzipSync(readFileSync(file), { level: 9 }).length;
  totals[file.endsWith('.js') ? 'js' : 'css'] += bytes;
  console.log(`${String(bytes).padStart(8)}  ${file.slice(dist.length + 1)}`);
}
console.log(`JavaScript ${totals.js} of ${JS_BUDGET_BYTES} bytes gzipped, CSS ${totals.css} bytes`);
if (totals.js === 0) throw new Error('no JavaScript found in dist/index.html');
if (totals.js > JS_BUDGET_BYTES) process.exit(1);
