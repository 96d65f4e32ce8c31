import { describe, expect, it } from 'vitest';
import type { AlertList, Overview } from '../../api/types';
import { state } from '../../fixtures/states';
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
