// Writes src/api/types.generated.ts from the app's OpenAPI; with --check, fails when the committed file is out of date.
// The interpreter is the checkout's venv, or the one that PYTHON names.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import openapiTS, { astToString } from 'openapi-typescript';

const web = join(dirname(fileURLToPath(import.meta.url)), '..');
const root = join(web, '..');
const target = join(web, 'src', 'api', 'types.generated.ts');
const python = process.env.PYTHON ?? join(root, '.venv', 'bin', 'python');

const document = execFileSync(python, ['-m', 'app.openapi'], {
  cwd: root,
  encoding: 'utf8',
  maxBuffer: 64 * 1024 * 1024,
});
const header = '// Made by `npm run api` from the OpenAPI document of the app. Do not edit.\n\n';
const text = header + astToString(await openapiTS(JSON.parse(document)));

if (process.argv.includes('--check')) {
  if (!existsSync(target) || readFileSync(target, 'utf8') !== text) {
    console.error('src/api/types.generated.ts is out of date: run `npm run api` and commit the file.');
    process.exit(1);
  }
} else {
  writeFileSync(target, text);
}
