import { describe, expect, it } from 'vitest';
import type { Alert, AuditEntry, NodeVerdict, Push } from '../../api/types';
import { evictionLines } from '../records/evictions';
import { commandsFor, elsewhere, found } from '../frame/palette';
import { ofAlert, ofAudit, restorable, timeline } from './timeline';
import { ANYBODY } from '../frame/asker';
import { state } from '../../fixtures/states';

const entry = (more: Partial<AuditEntry> = {}): AuditEntry => ({
  id: 7, at: 100, actor: 'bob', token_id: '', source: '10.0.0.1', action: 'update', kind: 'quota', name: 'acme', type: 'quotas', generation: 4,
  before: { limit_bytes: 2048 }, after: { limit_bytes: 1024 }, request_id: 'r', trace_id: '', decision: 'allowed', reason: '', hash: '', ...more,
});

const push = (id: number, node: string, generation: number, state: Push['state']): Push => ({
  id, node, generation, state, type: 'quotas', digest: '', reason: 'change', attempt: 1, size_bytes: 1, bodies: 0, sent_at: 101, answered_at: 102, applied_s: 0, faults: [],
});

describe('the timeline', () => {
  it('shows a change with its fields and the answer of each node, also to a later generation that includes it', () => {
    const pushes = [push(1, 'a', 4, 'timed_out'), push(2, 'a', 4, 'acked'), push(3, 'b', 5, 'nacked'), push(4, 'b', 6, 'acked'), push(5, 'c', 3, 'acked')];
    const moment = ofAudit(entry(), pushes);
    expect(moment).toMatchObject({ kind: 'change', title: 'update quota acme', actor: 'bob', changed: [{ field: 'limit_bytes', before: '2 KiB', after: '1 KiB' }] });
    expect(moment.pushes.map(({ node, generation, state: answer }) => [node, generation, answer])).toEqual([['a', 4, 'acked'], ['b', 5, 'nacked']]);
  });

  it('offers the way back where the API has one', () => {
    const pins = { exists: (name: string) => name === 'here', kept: (name: string) => name === 'kept' };
    expect(restorable(ofAudit(entry(), []), pins)).toBe(true);
    expect(restorable(ofAudit(entry({ before: null }), []), pins)).toBe(false);
    expect(restorable(ofAudit(entry({ decision: 'denied' }), []), pins)).toBe(false);
    expect(restorable(ofAudit(entry({ kind: 'pin', name: 'here' }), []), pins)).toBe(true);
    expect(restorable(ofAudit(entry({ kind: 'pin', name: 'deleted', action: 'delete' }), []), pins)).toBe(false);
    expect(restorable(ofAudit(entry({ kind: 'pin', name: 'kept', action: 'delete' }), []), pins)).toBe(true);
    expect(restorable(ofAudit(entry({ kind: 'pin', name: 'kept' }), []), pins)).toBe(false);
    expect(restorable(ofAudit(entry({ kind: 'tokenizer' }), []), pins)).toBe(false);
  });

  it('names an entry that cannot be read', () => {
    expect(ofAudit(entry({ id: 9, decision: 'unreadable', kind: '', action: '', name: '' }), [])).toMatchObject({ kind: 'change', title: 'unreadable audit entry 9' });
  });

  it('has the begin and the end of alerts in their order', () => {
    const alert = { fingerprint: 'f', alertname: 'Late', severity: 'critical', tenant: 'acme', node: '', summary: 's', starts_at: 90, ended_at: 110 } as Alert;
    expect(timeline([ofAudit(entry(), [])], ofAlert(alert)).map((moment) => moment.title)).toEqual(['Alert Late, tenant acme ended', 'update quota acme', 'Alert Late, tenant acme fired']);
  });
});

it('evictions are summed over nodes, by tenant and tier', () => {
  const verdict = (node: string, ...evictions: [string, string, number][]): NodeVerdict => ({
    node, type: 'quotas', selected: true, accepted: true, faults: [], error: null, evictions: evictions.map(([tenant, tier, bytes]) => ({ tenant, tier, bytes })),
  });
  expect(evictionLines([verdict('a', ['t', '', 1024], ['t', 'disk', 512]), verdict('b', ['t', '', 2048])])).toEqual([
    'Would evict 3 KiB of t from memory at once, on a, b.',
    'Would evict 512 B of t from the tier disk at once, on a.',
  ]);
  expect(evictionLines(null)).toEqual([]);
});

describe('the command palette', () => {
  const { overview } = state('busy');
  const all = commandsFor({ ...ANYBODY, administers: true }, overview, true);

  it('finds pages, tenants, pins, nodes and actions, beginnings first', () => {
    expect(found(all, 'chat')[0]).toMatchObject({ kind: 'tenant', label: 'chat', link: '#/tenants/chat' });
    expect(found(all, 'pin chat-system')[0]).toMatchObject({ kind: 'pin', label: 'chat-system-prompt' });
    expect(found(all, 'gpu-a2')[0]).toMatchObject({ kind: 'node' });
    expect(found(all, 'new quota')[0]).toMatchObject({ action: 'create quotas' });
    expect(found(all, 'no such thing')).toEqual([]);
  });

  it('offers nothing that would fail', () => {
    const actions = (asker: typeof ANYBODY) => commandsFor(asker, overview, false).filter(({ kind }) => kind === 'action').map(({ label }) => label);
    expect(actions({ ...ANYBODY, operates: false, role: 'viewer' })).toEqual([]);
    expect(actions({ ...ANYBODY, tenants: ['chat'] })).toEqual(['New quota', 'New pin']);
  });
});

it('the palette leads to the lists of tenants and pins that the overview has only some of', () => {
  const { overview } = state('busy');
  expect(elsewhere(overview, 'zz')).toEqual([]);
  const many = { ...overview, tenants_total: 10_000, pins_total: 600 };
  expect(elsewhere(many, ' zz ').map(({ link }) => link)).toEqual(['#/tenants?find=zz', '#/pins?find=zz']);
  expect(elsewhere(many, ' ')).toEqual([]);
});
