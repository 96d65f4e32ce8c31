// A plugin of Vite that answers the dashboard's requests from src/fixtures, so that `npm run dev` needs no server.
// STATE names the fixture. Nothing can be changed: each request that is no GET is refused.
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const FIXTURES = join(dirname(fileURLToPath(import.meta.url)), '..', 'src', 'fixtures');
const CONFIRM_MS = 1_000;
const STARTED = Date.now();
const NOTHING = { items: [], total: 0, next_cursor: '', failed_nodes: [], not_kept: { before: 0, dropped: 0, lost: 0, names: [] } };
const LISTS = ['alerts', 'pushes', 'managers', 'policies', 'tiers', 'ipc', 'tokens', 'ceilings', 'rates', 'tokenizers', 'events/history', 'blocks', 'sessions'];
const STATUS = { accepted: true, applied: true, nodes: {}, conditions: [] };

const problem = (status, title, detail = '') => ({ type: 'about:blank', title, status, detail });
const list = (items, total = items.length) => ({ items, total, next_cursor: '' });

/** Times go on from the recorded one. */
function now(overview) {
  const gone = (Date.now() - STARTED) / 1000;
  return { ...overview, at: overview.at + gone, nodes: overview.nodes.map((node) => (node.stats ? { ...node, seen_at: node.seen_at + gone } : node)) };
}

function series({ history, marks = [] }, asked) {
  const nothing = history.at.map(() => null);
  const of = { unit: '', node: asked.get('node'), tenant: asked.get('tenant') };
  return { step_s: 10, at: history.at, marks, problem: '', series: asked.getAll('name').map((name) => ({ name, ...of, values: history[name] ?? nothing })) };
}

/** What the API has at this path, without `/api/v1/`; undefined for nothing. */
function answer(played, path, asked) {
  const { overview, answers = {} } = played;
  const [kind, name = ''] = path.split('/').map(decodeURIComponent);
  const record = kind === 'pins' ? overview.pins.find((pin) => pin.name === name) : overview.tenants.find((tenant) => tenant.tenant === name);
  if (name && kind === 'quotas') return record && { ...record, etag: '"1"', generation: 1, managed_by: '', selector: null, status: STATUS };
  if (kind === 'pins' || kind === 'tenants') return name ? record : list(overview[kind], overview[`${kind}_total`]);
  const held = answers[path];
  const only = asked.get('kind');
  if (path === 'audit') return only ? list(played.audit.items.filter((each) => each.kind === only)) : played.audit;
  if (path === 'alerts' && held && asked.get('state')) return list(held.items.filter((each) => each.state === asked.get('state')));
  if (path === 'sessions' && held && asked.get('tenant')) return { ...held, items: held.items.filter((each) => each.tenant === asked.get('tenant')) };
  if (LISTS.includes(path)) return held ?? NOTHING;
  const whole = { session: played.session, overview: now(overview), series: series(played, asked), annotations: held ?? [], healthz: { status: 'ok', release: 'dev', instance: path } };
  const item = answers[kind]?.items?.find((each) => each.name === name);
  return whole[path] ?? (path in played ? played[path] : item);
}

function send(response, status, body) {
  response.writeHead(status, { 'content-type': status < 400 ? 'application/json' : 'application/problem+json' });
  response.end(JSON.stringify(body));
}

function stream(request, response, overview) {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const beat = () => response.write(`event: overview\ndata: ${JSON.stringify(now(overview))}\n\n`);
  beat();
  const timer = setInterval(beat, CONFIRM_MS);
  request.on('close', () => clearInterval(timer));
}

export function play(state) {
  const file = join(FIXTURES, `${state}.json`);
  return {
    name: 'larder-play',
    apply: 'serve',
    configureServer(server) {
      if (!existsSync(file)) throw new Error(`STATE: there is no fixture ${file}`);
      server.middlewares.use((request, response, next) => {
        const { pathname, searchParams } = new URL(request.url, 'http://play');
        if (pathname !== '/healthz' && !pathname.startsWith('/api/v1/')) return next();
        const played = JSON.parse(readFileSync(file, 'utf8'));
        const path = pathname.replace('/api/v1/', '').replace(/^\//, '');
        if (request.method !== 'GET') return send(response, 503, problem(503, 'Fixtures cannot be changed', 'Set LARDER to the address of a running Larder.'));
        if (path === 'events') return stream(request, response, played.overview);
        const found = answer(played, path, searchParams);
        return found === undefined ? send(response, 404, problem(404, 'Not found')) : send(response, 200, found);
      });
    },
  };
}
