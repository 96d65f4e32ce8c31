import { describe, expect, it } from 'vitest';
import type { AlertList, Overview } from '../api/types';
import { state } from '../fixtures/states';
import { changes } from './audit';
import { eventSentence, eventTone, merged } from './events';
import { bridged } from './charts';
import { applied, cacheStart, conditions, lostAtStart } from './nodes';
import { pinOrder, pinState } from './pins';
import { forces, victims, watermarks } from './policies';
import { RefusalWindow } from './refusals';
import { floorShort, floorText, shareText } from './tenants';
import { byGroup, byStep } from './usage';
import { judge } from './verdict';

const { overview: busy } = state('busy');
const judged = (overview: Overview, refused = {}) => judge(overview, refused, overview.at);
const titles = (overview: Overview, refused = {}) => judged(overview, refused).findings.map((f) => f.title);

describe('the verdict', () => {
  it('is calm when all is well', () => {
    expect(judged(busy)).toEqual({ level: 'good', title: 'All is well', findings: [] });
    expect(judged(state('fresh').overview).level).toBe('good');
  });

  it('is not calm while an alert fires', () => {
    const list = (...severities: string[]) =>
      ({ items: severities.map((severity) => ({ severity })), total: severities.length, next_cursor: '' }) as AlertList;
    const firing = (overview: Overview, ...severities: string[]) => judge(overview, {}, overview.at, list(...severities));
    expect(firing(busy)).toEqual(judged(busy));
    expect(firing(busy, 'info')).toEqual({ level: 'note', title: '1 alert firing', findings: [] });
    expect(firing(busy, 'info', 'warning')).toMatchObject({ level: 'warn', title: '2 alerts firing' });
    expect(firing(state('cold').overview, 'critical')).toMatchObject({ level: 'bad', title: '1 alert firing, 2 warnings' });
    expect(firing(state('nacked').overview, 'info')).toMatchObject({ level: 'bad', title: '1 alert firing, 1 problem, 3 warnings' });
  });

  it('begins with the worst', () => {
    const { level, title, findings } = judged(state('nacked').overview);
    expect(level).toBe('bad');
    expect(title).toBe('1 problem, 3 warnings');
    expect(findings.map((f) => f.level)).toEqual(['bad', 'warn', 'warn', 'warn', 'note']);
    expect(findings[0]?.detail).toContain('quotas[3].limit_bytes');
    expect(findings[1]?.detail).toBe('quotas 14 of 15');
  });

  it('names a lost node and how long it is silent', () => {
    const lost = judged(state('lost').overview).findings[0];
    expect(lost?.title).toBe('Node gpu-a2 is lost');
    expect(lost?.detail).toBe('Last report 3 min 24 s ago.');
  });

  it('tells of limits, pins and quarantine', () => {
    expect(titles(state('over-limit').overview)).toEqual([
      'Tenant chat is over its limit by 2.2 GiB',
      'Pin eval-harness is degraded',
      '2.4 GiB are quarantined',
    ]);
    expect(titles(state('thousand-tenants').overview)).toEqual([
      '3 tenants are over their limits',
      '2 pins have no GPU copies',
    ]);
  });

  it('is not calm beside a cold cache or a pin that holds nothing', () => {
    const { overview } = state('cold');
    const { level, title, findings } = judged(overview);
    expect([level, title]).toEqual(['warn', '2 warnings']);
    expect(findings.map((f) => [f.title, f.detail, f.page])).toEqual([
      [
        'The cache of gpu-a1 is cold',
        '12,198 blocks (23.8 GiB) were lost when it started 5 min 12 s ago: the memory was gone when the data plane started. Engines fill it again as they store.',
        'nodes',
      ],
      ['2 pins hold nothing', 'code-search-tools, next-release: none of their blocks is cached. Blocks are kept as soon as an engine stores them.', 'pins'],
    ]);
    const [first, second] = overview.nodes;
    if (!first?.stats || !second) throw new Error('no numbers');
    const filled = { ...overview, nodes: [{ ...first, stats: { ...first.stats, cold: false } }, second] };
    const of = (resolved: number) => overview.pins.filter((pin) => pin.name === 'next-release').map((pin) => ({ ...pin, resolved }));
    const one = judged({ ...filled, pins: of(64) }).findings;
    expect(one.map((f) => [f.title, f.detail])).toEqual([['Pin next-release holds nothing', 'None of its 64 blocks is cached. Blocks are kept as soon as an engine stores them.']]);
    expect(judged({ ...filled, pins: of(1) }).findings[0]?.detail).toMatch(/^Its only block is not cached\./);
    expect(judged({ ...filled, pins: [] })).toEqual({ level: 'good', title: 'All is well', findings: [] });
  });

  it('is not calm when pins fill their budget', () => {
    const [node, ...others] = busy.nodes;
    if (!node?.stats) throw new Error('no numbers');
    const pinned = (bytes: number) => ({ ...busy, nodes: [{ ...node, stats: { ...node.stats!, pool: { ...node.stats!.pool, pinned_bytes: bytes, pin_budget_bytes: 100 } } }, ...others] });
    expect(titles(pinned(95))).toEqual([]);
    expect(titles(pinned(96))).toEqual([`Pins fill their budget on ${node.name}`]);
    const largest = [...busy.pins].sort((a, b) => b.bytes - a.bytes)[0];
    expect(judged(pinned(96)).findings[0]?.detail).toContain(`96 B of 100 B; the largest: ${largest?.name} of ${largest?.tenant} (`);
  });

  it('is not calm beside a record that no node has applied', () => {
    const [pin, ...others] = busy.pins;
    if (!pin) throw new Error('the state has no pin');
    const conditions = [{ type: 'Applied', status: 'False', reason: 'NoNode', message: 'no node has these labels', since: 0 } as const];
    const status = { ...pin.status, applied: false, nodes: {}, conditions };
    const nowhere = { ...busy, pins: [{ ...pin, expired: false, status }, ...others] };
    expect(titles(nowhere)).toEqual([`Pin ${pin.name} is not applied`]);
    expect(judged(nowhere).findings[0]?.detail).toBe('no node has these labels');
    expect(titles({ ...busy, pins: [{ ...pin, expired: true, status }] })).toEqual([]);
    const policy = busy.policy && { ...busy.policy, status: { ...busy.policy.status, applied: false } };
    if (policy) expect(titles({ ...busy, policy })).toEqual(['The policy is not applied']);
  });

  it('warns of refusals of the last minute, not of old ones', () => {
    expect(titles(busy, { pool_full: 3, over_limit: 12 })).toEqual(['15 blocks refused in the last minute']);
  });

  it('tells of a data plane that exited a short time ago, unless its node is in a crash loop', () => {
    const exit = (at: number) => ({ name: 'dataplane.exited', at, seq: at, node: 'gpu-a1', actor: '', fields: { code: -9, restart_in_s: 0 } });
    const of = (...events: ReturnType<typeof exit>[]) => judge({ ...busy, recent: [] }, {}, busy.at, null, events).findings;
    expect(of(exit(busy.at - 5), exit(busy.at - 60))).toMatchObject([
      { level: 'warn', page: 'nodes', name: 'gpu-a1', title: 'The data plane of gpu-a1 exited 5 s ago', detail: 'killed by signal 9, started again at once. 2 times in 5 min.' },
    ]);
    expect(of(exit(busy.at - 400))).toEqual([]);
  });

  it('names a tenant that stores and never hits, as a warning if others pay for it', () => {
    const [tenant] = busy.tenants;
    if (!tenant) throw new Error('no tenant');
    const totals = { ...busy.totals, evicted_blocks: 5_000, stored_blocks: 9_000 };
    const pool = { ...busy.pool, used_bytes: busy.pool.capacity_bytes };
    const scanner: typeof tenant = { ...tenant, tenant: 'scanner', limit_bytes: null, hit_blocks: 0, requested_blocks: 8_000, stored_blocks: 8_000, evicted_blocks: 1_000 };
    const of = (more: Partial<typeof tenant>) =>
      judge({ ...busy, totals, pool, tenants: [{ ...scanner, ...more }] }, {}, busy.at).findings.filter((finding) => finding.title.includes('never hits'));
    expect(of({})).toMatchObject([{ level: 'warn', page: 'tenants', name: 'scanner' }]);
    expect(of({ evicted_blocks: 5_000 })).toMatchObject([{ level: 'note' }]);
    expect(of({ limit_bytes: 1024, mode: 'enforce' })).toMatchObject([{ level: 'note' }]);
    expect(of({ hit_blocks: 1 })).toEqual([]);
    expect(of({ stored_blocks: 10 })).toEqual([]);
  });

  it('names the tenants whose blocks are refused', () => {
    const recent = [{ name: 'blocks.refused', at: busy.at, seq: 1, node: '', actor: '', fields: { tenant: 'acme' } }];
    expect(judge({ ...busy, recent }, { over_limit: 12 }, busy.at).findings[0]?.detail).toBe('12 over limit; lately of acme');
  });

  it('tells of conditions of nodes, and for a while of those that have ended', () => {
    const [node, ...others] = busy.nodes;
    const found = (type: 'crash_loop' | 'thrashing' | 'tenant_at_limit', ended_at: number | null) =>
      judged({ ...busy, nodes: [{ ...node!, conditions: [{ type, message: 'it is so', since: busy.at - 120, ended_at }] }, ...others] }).findings.map(({ level, title, detail }) => [level, title, detail]);
    expect(found('crash_loop', null)).toEqual([['bad', `Node ${node!.name} is in a crash loop`, 'For 2 min: it is so.']]);
    expect(found('thrashing', null)[0]?.[0]).toBe('warn');
    expect(found('tenant_at_limit', null)[0]?.slice(0, 2)).toEqual(['warn', `Node ${node!.name} is refusing blocks of a tenant at its limit`]);
    expect(found('thrashing', busy.at - 60)).toEqual([['note', `Node ${node!.name} was thrashing`, 'Until 1 min ago: it is so.']]);
  });

  it('says that quotas are not enforced, and what is missing altogether', () => {
    expect(titles({ ...busy, armed: false })).toEqual(['Quotas are not enforced']);
    expect(titles({ ...busy, ready: false })).toEqual(['Larder is not ready']);
    expect(titles(state('empty').overview)).toEqual(['No node has joined']);
    const joining = busy.nodes.map((node) => ({ ...node, state: 'joining' as const }));
    expect(judged({ ...busy, ready: false, nodes: joining }).level).toBe('bad');
  });
});

describe('charts', () => {
  it('bridges short pauses of requests and leaves long ones open', () => {
    expect(bridged([0, 10, 20, 30], [0.5, null, null, 0.6], 60)).toEqual([0.5, undefined, undefined, 0.6]);
    expect(bridged([0, 10, 90], [0.5, null, 0.6], 60)).toEqual([0.5, null, 0.6]);
    expect(bridged([0, 10], [null, 0.6], 60)).toEqual([null, 0.6]);
  });
});

describe('refusals of the last minute', () => {
  const refused = (counts: Record<string, number>): Overview => ({ ...busy, recent: [], refused: counts });

  it('are the growth of the counters inside the window', () => {
    const window = new RefusalWindow();
    window.add(refused({ pool_full: 10 }), 0);
    expect(window.lastMinute()).toEqual({});
    window.add(refused({ pool_full: 13, over_limit: 2 }), 30);
    expect(window.lastMinute()).toEqual({ pool_full: 3, over_limit: 2 });
    window.add(refused({ pool_full: 13, over_limit: 2 }), 95);
    expect(window.lastMinute()).toEqual({});
  });

  it('are taken from the recent events for the time before the page was opened', () => {
    const window = new RefusalWindow();
    const { overview } = state('over-limit');
    window.add(overview, overview.at);
    expect(window.lastMinute()).toEqual({ over_limit: 48 });
    expect(window.covered).toBe(false);
    window.add(overview, overview.at + 60);
    expect(window.lastMinute()).toEqual({});
    expect(window.covered).toBe(true);
  });

  it('start anew when a counter fell, because a node went', () => {
    const window = new RefusalWindow();
    window.add(refused({ pool_full: 10 }), 0);
    window.add(refused({ pool_full: 2 }), 10);
    expect(window.lastMinute()).toEqual({});
  });
});

it('a pin is judged by what it holds', () => {
  const [pin] = busy.pins;
  if (!pin) throw new Error('no pin');
  const of = (changes: Partial<typeof pin>) => pinState({ ...pin, expired: false, resolved: 8, resident: 8, guaranteed: 8, ...changes });
  expect(of({})).toBe('held');
  expect(of({ resident: 5, guaranteed: 5 })).toBe('partial');
  expect(of({ resident: 0, guaranteed: 0 })).toBe('absent');
  expect(of({ guaranteed: 3, degraded: 5 })).toBe('degraded');
  expect(of({ guaranteed: 0, strength: 'soft' })).toBe('held');
  expect(of({ guaranteed: 3, degraded: 5, expired: true })).toBe('expired');
});

it('pins that hold nothing come first', () => {
  expect([...state('cold').overview.pins].sort(pinOrder).slice(0, 2).map((pin) => pin.name)).toEqual(['code-search-tools', 'next-release']);
});

it('a node says how its cache began, and marks a cold one', () => {
  const { overview } = state('cold');
  expect(overview.nodes.map((node) => cacheStart(node, overview.at))).toEqual([
    'cache began empty 5 min 12 s ago',
    'cache released, began empty 2 h ago',
  ]);
  expect(overview.nodes.map((node) => conditions(node).map((each) => [each.tone, each.label]))).toEqual([[['warn', 'cache cold']], []]);
  const [older, warm] = busy.nodes;
  if (!warm?.stats || !older) throw new Error('no numbers');
  expect(cacheStart(warm, busy.at)).toBe('21,480 blocks kept at its start 1 d 2 h ago');
  expect(cacheStart(older, busy.at)).toBe('');
  const start = { ...warm.stats.start, kind: 'first' as const, at: busy.at - 60 };
  expect(cacheStart({ ...warm, stats: { ...warm.stats, start } }, busy.at)).toBe('new cache, 1 min ago');
  expect(cacheStart({ ...warm, stats: null }, busy.at)).toBe('');
  expect(lostAtStart({ ...start, lost_blocks: 1, lost_bytes: 2048 })).toBe('1 block (2 KiB) was lost');
  expect(lostAtStart({ ...start, lost_blocks: 2, lost_bytes: 0 })).toBe('2 blocks were lost');
});

it('a share says what is not as for everybody, and a floor that is not wholly in effect', () => {
  const plain = state('busy').overview.tenants.find((tenant) => tenant.tenant === 'rag-support');
  if (!plain) throw new Error('no such tenant');
  expect([floorText(plain), shareText(plain)]).toEqual(['', '']);
  const GiB = 1024 ** 3;
  const short = { ...plain, floor_bytes: 2 * GiB, effective_floor_bytes: GiB, weight: 2, pin_budget_bytes: GiB, would_refuse_blocks: 1 };
  expect(floorShort(short)).toBe(true);
  expect(floorText(short)).toBe('floor 2 GiB, 1 GiB in effect');
  expect(floorText({ ...short, effective_floor_bytes: null })).toBe('floor 2 GiB');
  expect(shareText(short)).toBe('0 B pinned of 1 GiB · weight 2 · would refuse 1 block');
});

it('without a gate the policy says what was evicted, also by limits', () => {
  const [node] = state('fresh').overview.nodes;
  if (!node?.stats) throw new Error('no numbers');
  expect(forces([node]).map(victims)).toEqual(['nothing evicted yet']);
  const after = { ...node.stats, totals: { ...node.stats.totals, evicted_blocks: 9_137 } };
  expect(forces([{ ...node, stats: after }]).map(victims)).toEqual(['9,137 evicted']);
});

it('nodes with the same policy in force are shown once, and a closed gate is apart', () => {
  const { nodes } = state('busy').overview;
  const [both] = forces(nodes);
  expect(both?.names).toEqual(['gpu-a1', 'gpu-a2']);
  expect(both?.force.declined_blocks).toBe(2 * 1_877);
  expect(both && victims(both)).toBe('8.83 M evicted, victims idle 21 min 50 s');
  const closed = nodes.map((node, i) =>
    i === 0 && node.stats ? { ...node, stats: { ...node.stats, policy: { ...node.stats.policy, gate_closed: true } } } : node,
  );
  expect(forces(closed).map(({ names }) => names)).toEqual([['gpu-a1'], ['gpu-a2']]);
  expect(watermarks({ algorithm: 'noop', high_watermark: 1, low_watermark: 1 })).toBe('evicts nothing');
  expect(watermarks({ algorithm: 'lru', high_watermark: 0.97, low_watermark: 0.95 })).toBe('evicts above 97.0 % down to 95.0 %');
});

it('a node shows each type that it should have or has', () => {
  const joining = state('nacked').overview.nodes.find((node) => node.state === 'joining');
  if (!joining) throw new Error('no joining node');
  expect(applied(joining)).toEqual([
    { type: 'pins', desired: 9, observed: null, same: false, nothing: false },
    { type: 'policies', desired: 1, observed: null, same: false, nothing: false },
    { type: 'quotas', desired: 15, observed: null, same: false, nothing: false },
  ]);
});

describe('events', () => {
  const event = (name: string, fields: Record<string, unknown>) => ({ name, at: 1, seq: 1, node: '', actor: '', fields });

  it('are sentences', () => {
    expect(eventSentence(event('blocks.evicted', { tenant: 'chat', reason: 'room', blocks: 1, bytes: 2048 }))).toBe('chat: 1 block, 2 KiB, for room');
    const moved = { tier: 'disk', moved: 1030, released: 1028, refused: 2 };
    expect(eventSentence(event('move.ended', moved))).toBe('1,030 blocks to disk, 1,028 released, 2 refused');
    expect(eventSentence(event('move.ended', { ...moved, cancelled: true }))).toMatch(/2 refused, cancelled$/);
    expect(eventSentence(event('move.cancelled', { move: 3, tier: 'disk' }))).toBe('move 3 to disk');
    expect(eventSentence(event('push.nacked', { type: 'pins', generation: 3, faults: [{}] }))).toBe('pins generation 3: 1 fault');
  });

  it('tell of the data plane that ended', () => {
    const exited = event('dataplane.exited', { code: -9, restart_in_s: 0 });
    expect(eventSentence(exited)).toBe('killed by signal 9, started again at once');
    expect(eventTone(exited)).toBe('bad');
    expect(eventSentence(event('dataplane.exited', { code: 1, restart_in_s: 5 }))).toBe('exit code 1, started again in 5 s');
  });

  it('tell of lost caches and pins, and of memory that was released on purpose without a warning', () => {
    const lost = event('cache.started_cold', { reason: 'the memory was gone', released: false, lost_blocks: 4, lost_bytes: 4096 });
    expect([eventSentence(lost), eventTone(lost)]).toEqual(['4 blocks, 4 KiB lost: the memory was gone', 'warn']);
    const released = event('cache.started_cold', { reason: 'released by larder down', released: true, lost_blocks: 4, lost_bytes: 4096 });
    expect([eventSentence(released), eventTone(released)]).toEqual(['the cache began empty: released by larder down', 'plain']);
    const emptied = event('pin.emptied', { pin: 'p', tenant: 'acme', strength: 'guaranteed', blocks: 4 });
    expect([eventSentence(emptied), eventTone(emptied)]).toEqual(['p: none of its 4 blocks is cached any more', 'warn']);
    expect(eventSentence({ ...emptied, fields: { pin: 'p', blocks: 1 } })).toBe('p: its only block is not cached any more');
  });

  it('leave an empty name out, and a client that detaches is no warning', () => {
    expect(eventSentence(event('engine.attached', { engine: '', pid: 7, group: 'g' }))).toBe('pid 7, group g');
    expect(eventSentence(event('engine.attached', { engine: 'e', pid: 7, group: 'g' }))).toBe('e, pid 7, group g');
    expect(eventTone(event('engine.detached', { reason: 'client detached' }))).toBe('plain');
    expect(eventTone(event('engine.detached', { reason: 'died' }))).toBe('warn');
  });

  it('that are new to the page are shown with their fields', () => {
    expect(eventSentence(event('moon.rose', { over: 'hill', times: [1, 2] }))).toBe('over hill, times [1,2]');
  });

  it('are kept up to a bound', () => {
    const many = Array.from({ length: 300 }, (_, i) => ({ ...event('x', {}), seq: i, at: i }));
    expect(merged([], many)).toHaveLength(200);
    expect(merged([], many)[0]?.seq).toBe(299);
    const change = { ...event('policy.created', {}), at: -1 };
    expect(merged([], [change, ...many.map((each) => ({ ...each, name: 'blocks.stored' }))])).toContainEqual(change);
  });

  it('name who caused them, or where', () => {
    expect(eventSentence({ ...event('policy.created', { policy: 'default' }), actor: 'bob' })).toBe('policy default, by bob');
    expect(eventSentence({ ...event('node.lost', {}), node: 'gpu-1' })).toBe('gpu-1');
  });
});

it('usage is summed up by group, who held most first, and adds up to the totals', () => {
  const { usage } = state('busy');
  const rows = byGroup(usage);
  expect(rows.map((row) => row.group)).toEqual(['chat', 'code-search', 'batch-eval', 'rag-support', '_default', 'notebooks']);
  expect(rows.reduce((sum, row) => sum + row.used.served_tokens, 0)).toBe(usage.totals.served_tokens);
  expect(usage.items[0]?.served_tokens).toBeLessThan(rows[0]?.used.served_tokens ?? 0);
  expect(byStep(usage)[0]).toMatchObject({ start: usage.to - 3_600, group: '_default' });
});

it('an entry of the audit tells the fields that differ', () => {
  expect(changes({ before: { a: 1, b: 'x' }, after: { b: 'x', c: { d: null } } })).toEqual([
    { field: 'a', before: '1', after: '' },
    { field: 'c', before: '', after: '{"d":null}' },
  ]);
  expect(changes({ before: { limit_bytes: 5 * 1024 ** 3 }, after: null })[0]?.before).toBe('5 GiB');
  expect(changes({ before: null, after: null })).toEqual([]);
});

it('a pin has a finding while only tiers hold some of its blocks', () => {
  const { overview } = state('busy');
  const [pin, ...others] = overview.pins;
  if (!pin) throw new Error('no pin');
  const of = (only_in_tiers: number, not_loaded = '') =>
    judge({ ...overview, pins: [{ ...pin, resolved: 12, only_in_tiers, not_loaded }, ...others] }, {}, 0).findings.filter((each) => each.title.includes('fully in memory'));
  expect(of(0)).toEqual([]);
  expect(of(4)).toMatchObject([{ level: 'warn', page: 'pins', title: `Pin ${pin.name} is not fully in memory`, detail: '4 of 12 blocks are only in tiers, not in memory: being loaded.' }]);
  expect(of(1, 'budget')[0]?.detail).toBe('1 of 12 blocks is only in tiers, not in memory: no room in the pin budget.');
});

it('a pin without known blocks has a note while tiers are being listed', () => {
  const { overview } = state('busy');
  const [pin, ...others] = overview.pins;
  if (!pin) throw new Error('no pin');
  const of = (...unlisted_tiers: string[]) =>
    judge({ ...overview, pins: [{ ...pin, resident: 0, unlisted_tiers }, ...others] }, {}, 0).findings.filter((each) => each.title.includes('not known yet'));
  expect(of()).toEqual([]);
  expect(of('s3')).toMatchObject([{ level: 'note', page: 'pins', detail: 'None of its blocks is in memory. Whether tiers hold them is unknown until the listing of tier s3 is complete.' }]);
  expect(of('a', 'b')[0]?.detail).toMatch(/the listings of the tiers a, b are complete\.$/);
});

it('a type without any record is nothing to apply', () => {
  const [node] = state('fresh').overview.nodes;
  if (!node) throw new Error('no node');
  const rows = applied({ ...node, desired: { tiers: 0, pins: 3 }, observed: {} });
  expect(rows).toEqual([
    { type: 'pins', desired: 3, observed: null, same: false, nothing: false },
    { type: 'tiers', desired: 0, observed: null, same: true, nothing: true },
  ]);
});
