// Puts the API's documentation page into dist/swagger: Swagger UI as it is published, and our page around it.
// Pages are served with `default-src 'self'`: pictures that the style sheet holds as data: addresses become files.
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const web = join(dirname(fileURLToPath(import.meta.url)), '..');
const source = join(web, 'node_modules', 'swagger-ui-dist');
const target = join(web, 'dist', 'swagger');
const ENDINGS = { 'image/svg+xml': 'svg', 'image/png': 'png', 'image/jpeg': 'jpg' };

rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
for (const name of ['swagger-ui-bundle.js', 'LICENSE', 'NOTICE']) copyFileSync(join(source, name), join(target, name));
for (const name of ['index.html', 'page.js', 'page.css']) copyFileSync(join(web, 'swagger', name), join(target, name));

const pictures = new Map();
const css = readFileSync(join(source, 'swagger-ui.css'), 'utf8')
  .replace(/\/\*# sourceMappingURL=.*?\*\//, '')
  .replace(/url\("(data:[^"\\]*(?:\\.[^"\\]*)*)"\)|url\((data:[^)"']*)\)/g, (_, quoted, bare) => {
    const address = (quoted ?? bare).replaceAll('\\"', '"');
    const [, kind, base64, data] = /^data:([^;,]+)(?:;charset=[^;,]+)?(;base64)?,(.*)$/s.exec(address);
    if (!pictures.has(address)) {
      const name = `picture-${pictures.size + 1}.${ENDINGS[kind]}`;
      pictures.set(address, name);
      writeFileSync(join(target, name), base64 ? Buffer.from(data, 'base64') : decodeURIComponent(data));
    }
    return `url("${pictures.get(address)}")`;
  });
if (/url\(\s*["']?data:/.test(css)) throw new Error('a picture of Swagger UI is still inside of its style sheet');
writeFileSync(join(target, 'swagger-ui.css'), css);
