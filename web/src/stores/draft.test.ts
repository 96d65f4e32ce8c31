import { beforeEach, describe, expect, it, vi } from 'vitest';
import { ApiError } from '../api/client';
import type { ApplyAnswer, DryRunAnswer, Quota } from '../api/types';
import type { Json } from '../model/records/fields';
import { pushed, reached, settled } from '../model/records/records';
import { state } from '../fixtures/states';
import { Draft, type DraftDeps } from './draft.svelte';

const GIB = 1024 ** 3;

function quota(of: Partial<Quota> = {}): Quota {
  return {
    tenant: 'acme', limit_bytes: 4 * GIB, floor_bytes: 0, weight: 1, pin_budget_bytes: null, store_rate_bytes: null, on_exceed: 'evict_self',
    mode: 'enforce', tiers: { disk: { floor_bytes: 0, limit_bytes: GIB } }, note: '', managed_by: 'team-a', selector: null, generation: 3, etag: '"3"', created_at: 0, updated_at: 0,
    used_bytes: 0, blocks: 0, pinned_bytes: 0, effective_floor_bytes: 0, over_limit: false, would_refuse_blocks: 0, refused_blocks: 0, refused: {},
    status: { accepted: true, applied: true, nodes: {}, conditions: [] }, ...of,
  };
}

const problem = (status: number, errors: { path: string; message: string }[] = []) =>
  new ApiError({ type: 'urn:larder:problem:x', title: 'Refused', status, detail: 'for a reason', errors });

const plan = (action: string, fields: Json = {}): ApplyAnswer =>
  ({ dry_run: true, created: 0, updated: 0, deleted: 0, unchanged: 0, records: [{ type: 'quotas', name: 'acme', action, managed_by: '', fields }], generations: {}, status: {} }) as unknown as ApplyAnswer;

const deps = {
  getRecord: vi.fn<DraftDeps['getRecord']>(),
  createRecord: vi.fn<DraftDeps['createRecord']>(),
  changeRecord: vi.fn<DraftDeps['changeRecord']>(),
  deleteRecord: vi.fn<DraftDeps['deleteRecord']>(),
  tryRecord: vi.fn<DraftDeps['tryRecord']>(),
  tryOnNodes: vi.fn<DraftDeps['tryOnNodes']>(),
  tryAlone: vi.fn<DraftDeps['tryAlone']>(),
};

beforeEach(() => {
  vi.resetAllMocks();
  deps.getRecord.mockResolvedValue(quota());
  deps.tryRecord.mockResolvedValue(plan('update', { limit_bytes: { before: 4 * GIB, after: 5 * GIB } }));
  deps.tryOnNodes.mockResolvedValue({ items: [{ node: 'a', type: 'quotas', selected: true, accepted: true, faults: [], error: null, evictions: [] }], total: 1, accepted: true });
  deps.changeRecord.mockResolvedValue(quota({ generation: 4 }));
});

async function opened(name: string | null = 'acme', whole = true): Promise<Draft> {
  const draft = new Draft('quotas', name, { csrf: 'c5', whole }, deps);
  await draft.load();
  return draft;
}

describe('a change', () => {
  it('is tried with everything that the record has, and saved as what differs, in the state that was read', async () => {
    const draft = await opened();
    draft.values.limit_bytes = '5GiB';
    await draft.check();
    expect(draft.step).toBe('review');
    expect(draft.changes).toEqual([{ field: 'limit_bytes', before: '4 GiB', after: '5 GiB' }]);
    const tried = deps.tryRecord.mock.calls[0]?.[3];
    expect(tried).toMatchObject({ limit_bytes: '5GiB', managed_by: 'team-a', tiers: { disk: { limit_bytes: GIB } } });
    expect(tried).not.toHaveProperty('etag');
    expect(deps.changeRecord).not.toHaveBeenCalled();
    await draft.save();
    expect(deps.changeRecord).toHaveBeenCalledWith({ csrf: 'c5', whole: true }, 'quotas', 'acme', '"3"', { limit_bytes: '5GiB' });
    expect(draft.step).toBe('done');
  });

  it('that changes nothing is not offered to be saved', async () => {
    const draft = await opened();
    deps.tryRecord.mockResolvedValue(plan('unchanged'));
    await draft.check();
    expect(draft.step).toBe('edit');
    expect(draft.faults['']).toEqual(['Nothing would change.']);
    expect(deps.tryOnNodes).not.toHaveBeenCalled();
  });

  it('with a wrong value stays open, with the message at the field', async () => {
    const draft = await opened();
    draft.values.limit_bytes = 'apples';
    await draft.check();
    expect(draft.faults.limit_bytes?.[0]).toContain('a size such as 4GiB');
    expect(deps.tryRecord).not.toHaveBeenCalled();
    draft.values.limit_bytes = '3GiB';
    deps.tryRecord.mockRejectedValue(problem(422, [{ path: 'quotas.acme.limit_bytes', message: 'expected a size' }]));
    await draft.check();
    expect([draft.step, draft.faults, draft.busy]).toEqual(['edit', { limit_bytes: ['expected a size'] }, false]);
  });

  it('of a token that is limited to tenants is not tried on nodes', async () => {
    const draft = await opened('acme', false);
    draft.values.limit_bytes = '5GiB';
    await draft.check();
    expect([draft.step, draft.verdicts]).toEqual(['review', null]);
    expect(deps.tryOnNodes).not.toHaveBeenCalled();
  });

  it('can be saved while no node is connected', async () => {
    const draft = await opened();
    draft.values.limit_bytes = '5GiB';
    deps.tryOnNodes.mockRejectedValue(new ApiError({ type: 'urn:larder:problem:node-unreachable', title: 'Unreachable', status: 503 }));
    await draft.check();
    expect([draft.step, draft.verdicts, draft.problem]).toEqual(['review', [], null]);
    deps.tryOnNodes.mockRejectedValue(problem(503));
    await draft.check();
    expect([draft.step, draft.problem?.status]).toEqual(['edit', 503]);
  });

  it('that a node would refuse shows why at the field', async () => {
    const draft = await opened();
    draft.values.limit_bytes = '5GiB';
    const faults = [{ path: 'quotas.acme.limit_bytes', code: 'bad_field', message: 'too large' }];
    deps.tryOnNodes.mockResolvedValue({ items: [{ node: 'a', type: 'quotas', accepted: false, faults, error: null }], total: 1, accepted: false } as DryRunAnswer);
    await draft.check();
    expect(draft.faults).toEqual({ limit_bytes: ['too large'] });
    const [node] = state('busy').overview.nodes;
    if (!node) throw new Error('no node');
    expect(reached([{ ...node, name: 'a', labels: {} }], null, null, draft.verdicts)).toEqual([
      { node: 'a', tone: 'bad', text: 'would refuse it', faults: ['quotas.acme.limit_bytes: too large'] },
    ]);
  });
});

describe('a conflict', () => {
  it('keeps what was typed, and takes the rest from the newer state', async () => {
    const draft = await opened();
    draft.values.limit_bytes = '5GiB';
    await draft.check();
    deps.changeRecord.mockRejectedValueOnce(problem(412));
    await draft.save();
    expect([draft.step, draft.conflict]).toEqual(['edit', true]);
    deps.getRecord.mockResolvedValue(quota({ weight: 3, limit_bytes: 6 * GIB, generation: 4, etag: '"4"' }));
    await draft.rebase();
    expect(draft.others.map((each) => each.field).sort()).toEqual(['limit_bytes', 'weight']);
    expect([draft.values.limit_bytes, draft.values.weight, draft.conflict]).toEqual(['5GiB', '3', false]);
    await draft.check();
    await draft.save();
    expect(deps.changeRecord.mock.lastCall?.slice(3)).toEqual(['"4"', { limit_bytes: '5GiB' }]);
  });

  it('with a deletion becomes a new record', async () => {
    const draft = await opened();
    draft.values.limit_bytes = '5GiB';
    await draft.check();
    deps.changeRecord.mockRejectedValueOnce(problem(412));
    await draft.save();
    deps.getRecord.mockRejectedValue(problem(404));
    await draft.rebase();
    expect([draft.record, draft.values.limit_bytes]).toEqual([null, '5GiB']);
  });
});

describe('a new record', () => {
  it('is created, and never in the place of one that exists', async () => {
    const draft = await opened(null);
    await draft.check();
    expect(draft.faults.name).toEqual(['expected a name']);
    draft.name = '..'; // the browser would ask for another address
    await draft.check();
    expect(draft.faults.name?.[0]).toContain('other than');
    draft.name = ' acme ';
    draft.values.limit_bytes = '1GiB';
    await draft.check();
    expect(draft.faults.name?.[0]).toContain('already');
    deps.tryRecord.mockResolvedValue(plan('create', { limit_bytes: { before: null, after: GIB }, weight: { before: null, after: 1 } }));
    await draft.check();
    expect(draft.changes).toEqual([{ field: 'limit_bytes', before: '–', after: '1 GiB' }]);
    deps.createRecord.mockResolvedValue(quota());
    await draft.save();
    expect(deps.createRecord.mock.lastCall?.slice(1, 3)).toEqual(['quotas', 'acme']);
    expect(deps.changeRecord).not.toHaveBeenCalled();
  });

  it('is what a tenant without a quota gets', async () => {
    deps.getRecord.mockRejectedValue(problem(404));
    const draft = await opened('scanner');
    expect([draft.step, draft.record, draft.named]).toEqual(['edit', null, false]);
  });
});

it('the nodes are followed until each has answered', () => {
  const at = (nodes: Quota['status']['nodes']) => quota({ status: { accepted: true, applied: false, nodes, conditions: [] } });
  const waiting = at({ a: { observed_generation: 2, state: 'behind', conditions: [] } });
  expect([settled(waiting), pushed(waiting)[0]?.text]).toEqual([false, 'has not answered yet']);
  const condition = { type: 'Applied' as const, status: 'False' as const, reason: 'Refused', message: 'too many quotas', since: 0 };
  const refused = at({ a: { observed_generation: 3, state: 'in_sync', conditions: [] }, b: { observed_generation: 2, state: 'nacked', conditions: [condition] } });
  expect(settled(refused)).toBe(true);
  expect(pushed(refused).map((row) => [row.node, row.tone, row.faults])).toEqual([['a', 'good', []], ['b', 'bad', ['too many quotas']]]);
});

it('the nodes are asked again after a request failed, and an answer of before is dropped', async () => {
  const draft = await opened();
  draft.values.limit_bytes = '5GiB';
  await draft.save();
  const { saved } = draft;
  deps.getRecord.mockRejectedValueOnce(problem(503));
  await draft.follow();
  expect(draft.saved).toEqual(saved);
  expect(draft.saved).not.toBe(saved); // what shows it runs again
  deps.getRecord.mockResolvedValue(quota({ generation: 9 }));
  const late = draft.follow();
  await draft.undo();
  await late;
  expect(draft.saved?.generation).toBe(4);
});

it('a lost node says once why it has not answered', () => {
  const conditions = (['Applied', 'Effective'] as const).map((type) => ({ type, status: 'Unknown' as const, reason: 'NodeLost', message: 'a is silent', since: 0 }));
  const lost = quota({ status: { accepted: true, applied: false, nodes: { a: { observed_generation: 2, state: 'lost', conditions } }, conditions: [] } });
  expect(pushed(lost).map((row) => [row.tone, row.faults])).toEqual([['warn', ['a is silent']]]);
  const applied = { ...lost, generation: 2 };
  expect(pushed(applied).map((row) => [row.tone, row.text])).toEqual([['warn', 'applied it, but does not report now']]);
});

it('a tier is checked while it is typed, and only fields that are filled in have messages', async () => {
  const draft = new Draft('tiers', null, { csrf: 'c5', whole: true }, deps);
  await draft.load();
  draft.values.type = 'disk';
  await draft.probe();
  expect(deps.tryRecord).not.toHaveBeenCalled();
  draft.values.budget_bytes = '64MiB';
  deps.tryRecord.mockRejectedValue(problem(422, [{ path: 'tiers.new.budget_bytes', message: 'too small' }, { path: 'tiers.new.parameters.directories', message: 'expected a list' }]));
  await draft.probe();
  expect([draft.hints, draft.faults]).toEqual([{ budget_bytes: ['too small'] }, {}]);
  expect([draft.step, draft.problem]).toEqual(['edit', null]);
});

describe('the way back', () => {
  it('undoes a change with the ETag of what was saved', async () => {
    const draft = await opened();
    draft.values.limit_bytes = '5GiB';
    await draft.check();
    deps.changeRecord.mockResolvedValue(quota({ generation: 4, etag: '"4"', limit_bytes: 5 * GIB }));
    await draft.save();
    deps.changeRecord.mockResolvedValue(quota({ generation: 5 }));
    await draft.undo();
    expect(draft.step).toBe('undone');
    expect(deps.changeRecord.mock.calls.at(-1)?.slice(3)).toEqual(['"4"', { limit_bytes: 4 * GIB }]);
  });

  it('undoes a new record by deleting it, and says so if it was changed since', async () => {
    deps.getRecord.mockRejectedValue(problem(404));
    const draft = await opened('new');
    deps.createRecord.mockResolvedValue(quota({ etag: '"1"' }));
    await draft.save();
    deps.deleteRecord.mockRejectedValue(problem(412));
    await draft.undo();
    expect([draft.step, draft.conflict]).toEqual(['done', true]);
    deps.deleteRecord.mockResolvedValue(undefined);
    await draft.undo();
    expect([draft.step, draft.saved]).toEqual(['undone', null]);
    expect(deps.deleteRecord).toHaveBeenLastCalledWith(expect.anything(), 'quotas', 'new', '"1"');
  });

  it('puts earlier values back after a check, also of a record that was deleted', async () => {
    const draft = new Draft('policies', 'default', { csrf: 'c5', whole: true }, deps);
    deps.getRecord.mockRejectedValue(problem(404));
    deps.tryRecord.mockResolvedValue(plan('create'));
    await draft.restore({ algorithm: 'arc', high_watermark: 0.9 });
    expect(draft.step).toBe('review');
    expect(deps.tryRecord.mock.calls[0]?.[3]).toMatchObject({ algorithm: 'arc', high_watermark: 0.9 });
    expect(deps.createRecord).not.toHaveBeenCalled();
  });
});
