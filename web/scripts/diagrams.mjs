// Draws the Mermaid diagrams of the documentation as pictures in docs/pictures, which `/docs` and the site show. Browsers
// need no script and no other host for them. The name of a picture is the path of its page, and the number of the diagram
// on the page. Pictures follow the reader's choice of a light or a dark scheme.
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { renderMermaidSVG } from 'beautiful-mermaid';

const docs = join(dirname(fileURLToPath(import.meta.url)), '..', '..', 'docs');
const pictures = join(docs, 'pictures');
const DIAGRAM = /^```mermaid\n(.*?)^```$/gms;
const STYLE = '<style>:root { --paper: #fff; --ink: #1f2328; } @media (prefers-color-scheme: dark) { :root { --paper: #1e2129; --ink: #e6e8eb; } }</style>';

const OPTIONS = { bg: 'var(--paper)', fg: 'var(--ink)', muted: 'var(--ink)', font: 'system-ui', transparent: true };

function drawn(text) {
  const svg = renderMermaidSVG(text, OPTIONS);
  const hash = createHash('sha256').update(text).digest('hex');
  const own = svg.replace(/@import url\([^)]*\);?/g, '');
  return `${own.replace(/<svg[^>]*>/, (root) => `${root}\n<!-- sha256 of its text: ${hash} -->\n${STYLE}`).trimEnd()}\n`;
}

mkdirSync(pictures, { recursive: true });
for (const name of readdirSync(pictures)) if (name.endsWith('.svg')) rmSync(join(pictures, name));
for (const page of readdirSync(docs, { recursive: true }).filter((name) => name.endsWith('.md')).sort()) {
  [...readFileSync(join(docs, page), 'utf8').matchAll(DIAGRAM)].forEach(([, text], at) => {
    writeFileSync(join(pictures, `${page.slice(0, -3).replaceAll('/', '-')}-${at + 1}.svg`), drawn(text));
  });
}
