/** Health of the cache: findings for the operator, worst first. */

import { evictsNothing, manyChanges } from './causes';
import type { AlertList, LarderEvent, Node, Overview, Pin } from '../../api/types';
import { ago, bytes, duration, named, plural, share, whole } from '../../format';
import { eventSentence } from '../history/events';
import { severityTone } from './alerts';
import type { Finding, Level } from './findings';
import { applied, lostAtStart } from '../nodes/nodes';
import { onlyInTiers, pinState, unlisted } from '../records/pins';
import { codeWords } from './refusals';
import { refusedClients } from '../nodes/gateway_clients';
import { gpuCopyState, troubled } from '../nodes/gpu_copies';
import { outOfService } from '../nodes/tiers';

export interface Verdict {
  level: Level;
  title: string;
  findings: Finding[];
}

/** Share of the pool from which quarantined bytes are a finding; below it, only the pool's panel shows them. */
const QUARANTINE_SHARE = 0.02;
/** Share of a node's pin budget from which it counts as full, as in the alert LarderPoolFullOfPins. */
const FULL_BUDGET_SHARE = 0.95;
/** How long an exit of a data plane is shown. */
const CRASH_SHOWN_S = 300;
/** Evictions from which on a cache is in use. */
const MIN_EVICTIONS = 1_000;
const RANK: Level[] = ['bad', 'warn', 'note', 'good'];

/** Return the verdict. Firing alerts have their own panel and are not findings, but they raise the level. */
export function judge(
  overview: Overview,
  refusedLastMinute: Record<string, number>,
  now: number,
  alerts: AlertList | null = null,
  events: readonly LarderEvent[] = [],
): Verdict {
  const findings = [
    ...readiness(overview),
    ...overview.nodes.flatMap((node) => [
      ...nodeFindings(node, now),
      ...conditions(node, now),
      ...coldCache(node, now),
      ...gpuFindings(node),
      ...tierFindings(node),
      ...gatewayFindings(node),
    ]),
    ...crashes(overview, events, now),
    ...refusals(refusedLastMinute, overview),
    ...unreadStores(overview),
    ...overLimit(overview),
    ...emptyPins(overview),
    ...pinsInTiers(overview),
    ...unlistedPins(overview),
    ...fullPinBudgets(overview),
    ...degradedPins(overview),
    ...pinsWithoutGpuCopies(overview),
    ...evictsNothing(overview, Object.keys(refusedLastMinute).length > 0),
    ...manyChanges(events, now),
    ...unapplied(overview),
    ...quarantine(overview),
  ].sort((a, b) => RANK.indexOf(a.level) - RANK.indexOf(b.level));
  const levels = [...findings.map((f) => f.level), ...(alerts?.items ?? []).map((alert) => severityTone(alert.severity))];
  const level = RANK.find((each) => levels.includes(each)) ?? 'good';
  return { level, title: heading(findings, alerts?.total ?? 0), findings };
}

function heading(findings: Finding[], firing: number): string {
  const problems = findings.filter((f) => f.level === 'bad').length;
  const warnings = findings.filter((f) => f.level === 'warn').length;
  const parts = [
    ...(firing ? [`${plural(firing, 'alert')} firing`] : []),
    ...(problems ? [plural(problems, 'problem')] : []),
    ...(warnings ? [plural(warnings, 'warning')] : []),
  ];
  if (parts.length) return parts.join(', ');
  return findings.length ? 'Well, with a note' : 'All is well';
}

function readiness(overview: Overview): Finding[] {
  if (overview.nodes.length === 0) {
    return [{ level: overview.ready ? 'warn' : 'bad', title: 'No node has joined', detail: 'Nothing is cached until one does.', page: 'nodes' }];
  }
  const found: Finding[] = [];
  const explained = overview.nodes.some((node) => node.state !== 'in_sync' && node.state !== 'joining');
  if (!overview.ready && overview.nodes.every((node) => node.state === 'joining')) {
    found.push({ level: 'bad', title: 'No node is connected', detail: 'Nothing is cached until one is.', page: 'nodes' });
  } else if (!overview.ready && !explained) {
    found.push({
      level: 'bad',
      title: 'Larder is not ready',
      detail: '/healthz/fleet of the management plane shows the reason.',
      page: 'nodes',
    });
  }
  if (!overview.armed) {
    found.push({
      level: 'warn',
      title: 'Quotas are not enforced',
      detail: overview.nodes.every((node) => node.state === 'lost')
        ? 'No node is connected. Each enforces the quotas that it applied last.'
        : 'No snapshot of the quotas is in force yet: every tenant may use the whole pool.',
      page: 'nodes',
    });
  }
  return found;
}

function nodeFindings(node: Node, now: number): Finding[] {
  switch (node.state) {
    case 'lost': {
      const silence = node.seen_at === 0 ? 'It has never reported.' : `Last report ${duration(now - node.seen_at)} ago.`;
      return [{ level: 'bad', title: `Node ${node.name} is lost`, detail: silence, page: 'nodes', name: node.name }];
    }
    case 'nacked': {
      const fault = node.faults[0];
      const more = node.faults.length > 1 ? ` And ${plural(node.faults.length - 1, 'more fault')}.` : '';
      return [
        {
          level: 'bad',
          title: `Node ${node.name} refused a snapshot`,
          detail: fault ? `${fault.type} generation ${fault.generation}, ${fault.path}: ${fault.message}${more}` : 'It keeps its last good state.',
          page: 'nodes',
      name: node.name,
        },
      ];
    }
    case 'behind': {
      const late = applied(node).filter((row) => !row.same);
      const detail = late.map((row) => `${row.type} ${row.observed ?? 'none'} of ${row.desired}`).join(', ');
      return [{ level: 'warn', title: `Node ${node.name} is behind`, detail: detail || 'It has not applied the latest snapshots yet.', page: 'nodes', name: node.name }];
    }
    case 'joining':
      return [{ level: 'note', title: `Node ${node.name} is joining`, detail: 'It is waiting for its first snapshots.', page: 'nodes', name: node.name }];
    default:
      return [];
  }
}

function coldCache(node: Node, now: number): Finding[] {
  const { stats } = node;
  if (!stats?.cold) return [];
  const reason = stats.start.reason ? `: ${stats.start.reason}` : '';
  return [
    {
      level: 'warn',
      title: `The cache of ${node.name} is cold`,
      detail: `${lostAtStart(stats.start)} when it started ${ago(now - stats.start.at)}${reason}. Engines fill it again as they store.`,
      page: 'nodes',
      name: node.name,
    },
  ];
}

/** Guaranteed or permanent pins that hold no blocks, so that every look-up of their prefixes misses. */
function emptyPins(overview: Overview): Finding[] {
  const empty = overview.pins.filter((pin) => pin.holds_nothing);
  const [first] = empty;
  if (!first) return [];
  const names = empty.slice(0, 3).map((pin) => pin.name).join(', ');
  const rest = empty.length > 3 ? ` and ${whole(empty.length - 3)} more` : '';
  const blocks = first.resolved === 1 ? 'Its only block is not cached' : `None of its ${whole(first.resolved)} blocks is cached`;
  return [
    {
      level: 'warn',
      title: empty.length === 1 ? `Pin ${names} holds nothing` : `${plural(empty.length, 'pin')} hold nothing`,
      detail: `${empty.length === 1 ? blocks : `${names}${rest}: none of their blocks is cached`}. Blocks are kept as soon as an engine stores them.`,
      page: 'pins',
      name: empty.length === 1 ? first.name : '',
    },
  ];
}

/** Guaranteed or permanent pins with blocks that only tiers hold. */
function pinsInTiers(overview: Overview): Finding[] {
  const pins = overview.pins.filter((pin) => pin.only_in_tiers > 0);
  const [first] = pins;
  if (!first) return [];
  return [
    {
      level: 'warn',
      title: pins.length === 1 ? `Pin ${first.name} is not fully in memory` : `${plural(pins.length, 'pin')} are not fully in memory`,
      detail: `${pins.length === 1 ? '' : `${first.name}: `}${onlyInTiers(first)}.`,
      page: 'pins',
      name: pins.length === 1 ? first.name : '',
    },
  ];
}

/** Guaranteed or permanent pins without a known block, as long as tiers are being listed. */
function unlistedPins(overview: Overview): Finding[] {
  const pins = overview.pins.filter((pin) => unlisted(pin));
  const [first] = pins;
  if (!first) return [];
  return [
    {
      level: 'note',
      title: pins.length === 1 ? `It is not known yet whether pin ${first.name} holds blocks` : `It is not known yet whether ${plural(pins.length, 'pin')} hold blocks`,
      detail: `${pins.length === 1 ? '' : `${first.name}: `}${unlisted(first)}`,
      page: 'pins',
      name: pins.length === 1 ? first.name : '',
    },
  ];
}

/** Nodes on which pins leave no room for further ones. If a pin is degraded, its finding replaces this one. */
function fullPinBudgets(overview: Overview): Finding[] {
  if (overview.pins.some((pin) => pinState(pin) === 'degraded')) return [];
  const full = overview.nodes.filter((node) => node.state !== 'lost' && node.stats && share(node.stats.pool.pinned_bytes, node.stats.pool.pin_budget_bytes) > FULL_BUDGET_SHARE);
  const [first] = full;
  if (!first?.stats) return [];
  const largest = [...overview.pins].sort((a, b) => b.bytes - a.bytes).slice(0, 3);
  const holders = largest.map((pin) => `${pin.name} of ${named(pin.tenant)} (${bytes(pin.bytes)})`).join(', ');
  return [
    {
      level: 'warn',
      title: full.length === 1 ? `Pins fill their budget on ${first.name}` : `Pins fill their budget on ${plural(full.length, 'node')}`,
      detail: `${bytes(first.stats.pool.pinned_bytes)} of ${bytes(first.stats.pool.pin_budget_bytes)}${holders ? `; the largest: ${holders}` : ''}. Blocks of further pins are evicted like others.`,
      page: 'pins',
    },
  ];
}

function gpuFindings(node: Node): Finding[] {
  return troubled(node).map((pool) => ({
    level: 'warn',
    title: `GPU copies on a GPU of ${node.name} have a problem`,
    detail: `${pool.name} ${pool.device}: ${pool.problem}`,
    page: 'nodes',
      name: node.name,
  }));
}

function tierFindings(node: Node): Finding[] {
  return outOfService(node).map((tier) => ({
    level: 'warn',
    title: `Tier ${tier.name} of ${node.name} is out of service`,
    detail: tier.reason,
    page: 'nodes',
      name: node.name,
  }));
}

function gatewayFindings(node: Node): Finding[] {
  const gateway = node.stats?.gateway;
  if (!gateway) return [];
  const at = { page: 'nodes', name: node.name } as const;
  const refused = refusedClients(gateway)[0];
  return [
    ...(gateway.problem ? [{ level: 'bad', title: `New workers cannot use the gateway of ${node.name}`, detail: gateway.problem, ...at } as const] : []),
    ...(refused ? [{ level: 'warn', title: `Node ${node.name} refuses requests of an LMCache client`, detail: refused, ...at } as const] : []),
  ];
}

const CONDITIONS = {
  crash_loop: 'in a crash loop',
  thrashing: 'thrashing',
  tenant_at_limit: 'refusing blocks of a tenant at its limit',
};

/** A node that crashes again and again is mostly in sync when one looks, and one that thrashes looks busy. */
function conditions(node: Node, now: number): Finding[] {
  return node.conditions.map((each) => {
    const what = CONDITIONS[each.type];
    const lasts = each.ended_at === null;
    return {
      level: !lasts ? 'note' : each.type === 'crash_loop' ? 'bad' : 'warn',
      title: `Node ${node.name} ${lasts ? 'is' : 'was'} ${what}`,
      detail: `${lasts ? `For ${duration(now - each.since)}` : `Until ${ago(now - each.ended_at!)}`}: ${each.message}.`,
      page: 'nodes',
      name: node.name,
    };
  });
}

/** Data planes that ended unexpectedly a short time ago: their nodes are in sync again within seconds. */
function crashes(overview: Overview, events: readonly LarderEvent[], now: number): Finding[] {
  const exits = events.filter((event) => event.name === 'dataplane.exited' && event.at > now - CRASH_SHOWN_S && typeof event.fields.restart_in_s === 'number');
  return [...new Set(exits.map((event) => event.node))]
    .filter((name) => !overview.nodes.some((node) => node.name === name && node.conditions.some((each) => each.type === 'crash_loop')))
    .map((name) => {
      const times = exits.filter((event) => event.node === name);
      const [last] = times;
      return {
        level: 'warn',
        title: `The data plane${name ? ` of ${name}` : ''} exited ${ago(now - (last?.at ?? now))}`,
        detail: `${last ? eventSentence(last) : ''}.${times.length > 1 ? ` ${whole(times.length)} times in ${duration(CRASH_SHOWN_S)}.` : ''}`,
        page: 'nodes',
        name,
      };
    });
}

/** Tenants without a hit, whose stores cause a large part of all evictions while the pool is full. */
function unreadStores(overview: Overview): Finding[] {
  const { pool, totals } = overview;
  if (totals.evicted_blocks < MIN_EVICTIONS) return [];
  return overview.tenants
    .filter((tenant) => tenant.hit_blocks === 0 && tenant.requested_blocks > 0 && tenant.stored_blocks > totals.stored_blocks / 4)
    .slice(0, 3)
    .map((tenant) => {
      const limited = tenant.limit_bytes !== null && tenant.mode === 'enforce';
      const alone = limited || tenant.evicted_blocks >= totals.evicted_blocks * 0.95;
      const full = share(pool.used_bytes, pool.capacity_bytes) > 0.95;
      return {
        level: alone || !full ? 'note' : 'warn',
        title: `Tenant ${named(tenant.tenant)} stores and never hits`,
        detail: `None of ${plural(tenant.requested_blocks, 'block')} that it requested was cached, and it stored ${whole(tenant.stored_blocks)}. ${limited ? 'Its limit bounds what it takes from others.' : alone ? 'It evicts its own blocks.' : 'Its stores evict blocks of others: a limit stops that.'}`,
        page: 'tenants',
        name: tenant.tenant,
      };
    });
}

function refusals(lastMinute: Record<string, number>, overview: Overview): Finding[] {
  const codes = Object.entries(lastMinute).sort((a, b) => b[1] - a[1]);
  if (codes.length === 0) return [];
  const total = codes.reduce((sum, [, n]) => sum + n, 0);
  const counts = codes.map(([code, n]) => `${whole(n)} ${codeWords(code)}`).join(', ');
  const refused = overview.recent.filter((event) => event.name === 'blocks.refused').map((event) => String(event.fields.tenant));
  const tenants = [...new Set(refused)].slice(0, 3);
  const detail = tenants.length ? `${counts}; lately of ${tenants.map(named).join(', ')}` : counts;
  return [{ level: 'warn', title: `${plural(total, 'block')} refused in the last minute`, detail, page: 'tenants', name: tenants.length === 1 ? (tenants[0] ?? '') : '' }];
}

function overLimit(overview: Overview): Finding[] {
  const over = overview.tenants.filter((tenant) => tenant.over_limit);
  const [first] = over;
  if (!first) return [];
  if (over.length === 1) {
    const excess = first.limit_bytes === null ? '' : ` by ${bytes(first.bytes - first.limit_bytes)}`;
    return [
      {
        level: 'warn',
        title: `Tenant ${named(first.tenant)} is over its limit${excess}`,
        detail: 'Leased blocks are evicted as soon as engines release them.',
        page: 'tenants',
        name: first.tenant,
      },
    ];
  }
  const names = over.slice(0, 3).map((tenant) => named(tenant.tenant));
  const rest = over.length > names.length ? ` and ${whole(over.length - names.length)} more` : '';
  return [
    { level: 'warn', title: `${plural(over.length, 'tenant')} are over their limits`, detail: names.join(', ') + rest, page: 'tenants' },
  ];
}

function degradedPins(overview: Overview): Finding[] {
  const degraded = overview.pins.filter((pin) => pinState(pin) === 'degraded');
  if (degraded.length === 0) return [];
  const names = degraded.slice(0, 3).map((pin) => pin.name).join(', ');
  const rest = degraded.length > 3 ? ` and ${whole(degraded.length - 3)} more` : '';
  return [
    {
      level: 'warn',
      title: degraded.length === 1 ? `Pin ${names} is degraded` : `${plural(degraded.length, 'pin')} are degraded`,
      detail: `${degraded.length === 1 ? 'Blocks' : `${names}${rest}: blocks`} beyond the pin budget may be evicted.`,
      page: 'pins',
      name: degraded.length === 1 ? names : '',
    },
  ];
}

/** Pins of the tier `gpu` without GPU copies. Blocks are still served from the pool. */
function pinsWithoutGpuCopies(overview: Overview): Finding[] {
  const nowhere = overview.pins.filter((pin) => !pin.expired && gpuCopyState(pin) === 'nowhere');
  if (nowhere.length === 0) return [];
  const names = nowhere.slice(0, 3).map((pin) => pin.name).join(', ');
  const rest = nowhere.length > 3 ? ` and ${whole(nowhere.length - 3)} more` : '';
  return [
    {
      level: 'note',
      title: nowhere.length === 1 ? `Pin ${names} has no GPU copies` : `${plural(nowhere.length, 'pin')} have no GPU copies`,
      detail: `${nowhere.length === 1 ? 'No' : `${names}${rest}: no`} GPU keeps them yet; blocks are read from the pools of nodes.`,
      page: 'pins',
      name: nowhere.length === 1 ? names : '',
    },
  ];
}

/** Records that are not applied on every node, except where the state of a node already explains it. */
function unapplied(overview: Overview): Finding[] {
  const reportedStates = new Set(overview.nodes.filter((node) => !['in_sync', 'lost'].includes(node.state)).map((node) => node.name));
  const open = (status: Pin['status']) => !status.applied && !Object.keys(status.nodes).some((name) => reportedStates.has(name));
  const pins = overview.pins.filter((pin) => !pin.expired && open(pin.status));
  const names = pins.slice(0, 3).map((pin) => pin.name).join(', ');
  const rest = pins.length > 3 ? ` and ${whole(pins.length - 3)} more` : '';
  const found: Finding[] = [];
  const [first] = pins;
  if (first) {
    const why = first.status.conditions?.find((condition) => condition.type === 'Applied')?.message;
    found.push({
      level: 'warn',
      title: pins.length === 1 ? `Pin ${names} is not applied` : `${plural(pins.length, 'pin')} are not applied`,
      detail: pins.length > 1 ? names + rest : why || 'No connected node that its labels select has confirmed it yet.',
      page: 'pins',
      name: pins.length === 1 ? names : '',
    });
  }
  if (overview.policy && overview.nodes.length > 0 && reportedStates.size === 0 && !overview.policy.status.applied) {
    found.push({ level: 'warn', title: 'The policy is not applied', detail: 'No connected node has confirmed it yet.', page: 'policy' });
  }
  return found;
}

function quarantine(overview: Overview): Finding[] {
  const { quarantined_bytes: held, capacity_bytes: capacity } = overview.pool;
  if (share(held, capacity) < QUARANTINE_SHARE) return [];
  return [
    {
      level: 'note',
      title: `${bytes(held)} are quarantined`,
      detail: 'They are released when the engines that may still write to them are proven gone.',
      page: 'nodes',
    },
  ];
}
