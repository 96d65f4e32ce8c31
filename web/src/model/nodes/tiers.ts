/** Tiers behind the memory of a node. */

import type { Pin, Tenant, Tier, TierRecord } from '../../api/types';
import { bytes, plural, whole } from '../../format';

/** The state of a tier that does not serve; nodes of older releases do not report it. */
function stateOf(tier: Tier): string {
  return tier.state && tier.state !== 'in service' ? tier.state : 'out of service';
}

/** `1,204 away, 12 failed`: blocks by reason, most first; empty if there are none. */
export function byReason(counts: Record<string, number> = {}): string {
  return Object.entries(counts)
    .filter(([, blocks]) => blocks > 0)
    .sort(([a, more], [b, less]) => less - more || a.localeCompare(b))
    .map(([reason, blocks]) => `${whole(blocks)} ${reason}`)
    .join(', ');
}

/** Notes about a tier: why it is out of service, how far its listing is, and blocks that were not copied to it or loaded from it. */
export function notes(tier: Tier): string[] {
  const refused = byReason(tier.refused);
  const lost = byReason(tier.lost);
  const held = Object.keys(tier.encodings ?? {}).length > 1 ? byReason(tier.encodings) : '';
  const asTheyAre = byReason(tier.not_compressed);
  return [
    ...(tier.serves ? [] : [`${stateOf(tier)}: ${tier.reason}`]),
    ...((tier.listed_blocks ?? null) === null
      ? []
      : [
          `listing, ${whole(tier.listed_blocks ?? 0)} blocks so far${tier.listing_fault ? `; ${tier.listing_fault}; it is tried again` : ''}`,
        ]),
    ...((tier.draining_blocks ?? null) === null
      ? []
      : [tier.draining_blocks ? `draining, ${plural(tier.draining_blocks, 'block')} left` : 'drained: other tiers hold all of its blocks']),
    ...(tier.waiting_blocks
      ? [`${whole(tier.waiting_blocks)} blocks wait to be copied to it${tier.waiting_bytes ? `, ${bytes(tier.waiting_bytes)}` : ''}`]
      : []),
    ...(tier.cascaded_blocks ? [`${plural(tier.cascaded_blocks, 'block')} copied from the tier before it, which evicts them`] : []),
    ...(refused ? [`blocks not copied to it: ${refused}`] : []),
    ...(lost ? [`blocks not loaded: ${lost}`] : []),
    ...(held ? [`encodings of blocks: ${held}`] : []),
    ...(asTheyAre ? [`blocks not compressed: ${asTheyAre}`] : []),
  ];
}

/** `67 % of 64 GiB`: stored bytes as a share of the bytes in memory; empty if the tier compresses nothing. */
export function ratio(tier: Tier): string {
  const compressed = Object.entries(tier.encodings ?? {}).some(([name, blocks]) => name !== 'none' && blocks > 0);
  const logical = tier.logical_bytes ?? 0;
  return compressed && logical > 0 ? `${Math.round((100 * (tier.stored_bytes ?? 0)) / logical)} % of ${bytes(logical)}` : '';
}

const QUOTAS_SHOWN = 5;

/** `acme 9 GiB of 10 GiB, floor 2 GiB`: tenants with a quota in the tier, most bytes first. */
export function quotasOf(tier: Tier): string[] {
  const managed = (tier.tenants ?? []).filter((each) => each.floor_bytes || (each.limit_bytes ?? null) !== null);
  const left = managed.length - QUOTAS_SHOWN;
  return [
    ...managed.slice(0, QUOTAS_SHOWN).map((each) => {
      const floor = each.floor_bytes ?? 0;
      const effective = each.effective_floor_bytes ?? 0;
      return [
        `${each.tenant} ${bytes(each.bytes)}${(each.limit_bytes ?? null) === null ? '' : ` of ${bytes(each.limit_bytes ?? 0)}`}`,
        ...(floor ? [`floor ${bytes(floor)}${effective < floor ? `, ${bytes(effective)} in effect` : ''}`] : []),
      ].join(', ');
    }),
    ...(left > 0 ? [`and ${plural(left, 'tenant')} more`] : []),
  ];
}

/** `disk at most 10 GiB, floor 2 GiB`: the quota of a tenant in tiers; empty without one. */
export function tierShares(tenant: Tenant): string[] {
  return Object.entries(tenant.tiers).map(([name, share]) => {
    const limit = share.limit_bytes ?? null;
    return [
      ...(limit === null ? [] : [`at most ${bytes(limit)}`]),
      ...(share.floor_bytes ? [`floor ${bytes(share.floor_bytes)}`] : []),
    ].reduce((text, part, at) => `${text}${at ? ', ' : ' '}${part}`, `in ${name}`);
  });
}

/** `512 in disk`: blocks of a pin in tiers. */
export function pinTiers(pin: Pin): { text: string; title: string }[] {
  return Object.entries(pin.tiers).map(([name, held]) => ({
    text: `${whole(held.blocks ?? 0)} in ${name}`,
    title: `${plural(held.blocks ?? 0, 'block')} in tier ${name}, ${whole(held.guaranteed ?? 0)} guaranteed, ${bytes(held.bytes ?? 0)}`,
  }));
}

/** `gpu-a1: in sync, generation 3, in service`: the state of a record by node. */
export function onNodes(record: TierRecord): string[] {
  const names = [...new Set([...Object.keys(record.status.nodes), ...Object.keys(record.stats)])].sort();
  return names.map((name) => {
    const at = record.status.nodes[name];
    const held = record.stats[name];
    const generation = at?.observed_generation ?? null;
    const parts = [at?.state.replace('_', ' ') ?? 'not selected', ...(generation === null ? [] : [`generation ${generation}`])];
    if (!held) parts.push('not open');
    else parts.push(held.serves ? 'in service' : `${stateOf(held)}: ${held.reason}`);
    return `${name}: ${parts.join(', ')}`;
  });
}

/** Faults of the nodes that refuse the current tiers. */
export function refusals(record: TierRecord): string[] {
  return Object.entries(record.faults).flatMap(([node, faults]) => faults.map((fault) => `${node} refused ${fault.path}: ${fault.message}`));
}
