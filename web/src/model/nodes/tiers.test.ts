import { describe, expect, it } from 'vitest';
import { state } from '../../fixtures/states';
import { byReason, notes, pinTiers, quotasOf, ratio, tierShares } from './tiers';
import { shareText } from '../records/tenants';

describe('tiers behind memory', () => {
  it('that serve need no note', () => {
    const { overview } = state('busy');
    const tiers = overview.nodes.flatMap((node) => node.stats?.tiers ?? []);
    expect(tiers.map((tier) => [tier.name, notes(tier)])).toEqual([['disk', []]]);
  });

  it('that are out of service have notes', () => {
    const [tier] = state('nacked').overview.nodes.flatMap((node) => node.stats?.tiers ?? []).filter((each) => !each.serves);
    if (!tier) throw new Error('every tier serves');
    expect(notes({ ...tier, listed_blocks: 1_204, listing_fault: 'no answer' })).toContain(
      'listing, 1,204 blocks so far; no answer; it is tried again',
    );
    expect(notes({ ...tier, draining_blocks: 1_204 })).toContain('draining, 1,204 blocks left');
    expect(notes({ ...tier, draining_blocks: 0 })).toContain('drained: other tiers hold all of its blocks');
    expect(notes({ ...tier, cascaded_blocks: 1_204 })).toContain('1,204 blocks copied from the tier before it, which evicts them');
    expect(notes({ ...tier, waiting_blocks: 1_500, waiting_bytes: 3 * 2 ** 30 })).toEqual([
      'out of service: /mnt/nvme0/larder: write: Input/output error',
      '1,500 blocks wait to be copied to it, 3 GiB',
      'blocks not copied to it: 1,204 away, 12 failed',
      'blocks not loaded: 3 failed',
    ]);
  });

  it('tiers that compress show how their blocks are encoded', () => {
    const [plain] = state('busy').overview.nodes.flatMap((node) => node.stats?.tiers ?? []);
    if (!plain) throw new Error('there is no tier');
    expect(ratio(plain)).toBe('');
    const packed = { ...plain, stored_bytes: 2 * 2 ** 30, logical_bytes: 3 * 2 ** 30, encodings: { zstd: 900, none: 100 }, not_compressed: { dtype: 100 } };
    expect(ratio(packed)).toBe('67 % of 3 GiB');
    expect(notes(packed)).toEqual(['encodings of blocks: 900 zstd, 100 none', 'blocks not compressed: 100 dtype']);
  });

  it('count blocks by reason, most first', () => {
    expect(byReason({ late: 2, away: 2, failed: 9, full: 0 })).toBe('9 failed, 2 away, 2 late');
    expect(byReason(undefined)).toBe('');
  });

  it('show the quotas of tenants, and how a floor is scaled down', () => {
    const [tier] = state('busy').overview.nodes.flatMap((node) => node.stats?.tiers ?? []);
    if (!tier) throw new Error('no tier');
    expect(quotasOf(tier)).toEqual(['code-search 200 GiB of 256 GiB, floor 100 GiB']);
    const only = { tenant: 'acme', blocks: 1, bytes: 1024, floor_bytes: 4096, effective_floor_bytes: 2048, limit_bytes: null };
    expect(quotasOf({ ...tier, tenants: [only] })).toEqual(['acme 1 KiB, floor 4 KiB, 2 KiB in effect']);
    expect(quotasOf({ ...tier, tenants: Array(7).fill(only) }).at(-1)).toBe('and 2 tenants more');
  });

  it('are named by quotas and by pins', () => {
    const { overview } = state('busy');
    const [tenant] = overview.tenants.filter((each) => each.tenant === 'code-search');
    if (!tenant) throw new Error('no tenant');
    expect(tierShares(tenant)).toEqual(['in disk at most 256 GiB, floor 100 GiB']);
    expect(shareText(tenant)).toContain('in disk at most 256 GiB');
    const [pin] = overview.pins.filter((each) => each.name === 'chat-system-prompt');
    if (!pin) throw new Error('no pin');
    expect(pinTiers(pin)).toEqual([
      { text: '512 in disk', title: '512 blocks in tier disk, 512 guaranteed, 1 GiB' },
    ]);
  });
});
