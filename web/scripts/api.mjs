// Writes src/api/types.generated.ts and src/api/forms.generated.ts from the app's OpenAPI; with --check, fails when a
// committed file is out of date. The interpreter is the checkout's venv, or the one that PYTHON names.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import openapiTS, { astToString } from 'openapi-typescript';
import { formsOf } from './forms.mjs';

const web = join(dirname(fileURLToPath(import.meta.url)), '..');
const root = join(web, '..');
const python = process.env.PYTHON ?? join(root, '.venv', 'bin', 'python');

const document = JSON.parse(
  execFileSync(python, ['-m', 'app.openapi'], { cwd: root, encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 }),
);
const header = '// Made by `npm run api` from the OpenAPI document of the app. Do not edit.\n\n';
const files = {
  'types.generated.ts': header + astToString(await openapiTS(document)),
  'forms.generated.ts': header + formsOf(document),
};

for (const [name, text] of Object.entries(files)) {
  const target = join(web, 'src', 'api', name);
  if (!process.argv.includes('--check')) {
    writeFileSync(target, text);
  } else if (!existsSync(target) || readFileSync(target, 'utf8') !== text) {
    console.error(`src/api/${name} is out of date: run \`npm run api\` and commit the file.`);
    process.exit(1);
  }
}
