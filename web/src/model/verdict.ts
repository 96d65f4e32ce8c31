/** Is the cache well? What an operator must see first, from the worst on. */

import type { Node, Overview, Pin } from '../api/types';
import { ago, bytes, duration, named, plural, share, whole } from '../format';
import { applied, lostAtStart } from './nodes';
import { pinState } from './pins';
import { codeWords } from './refusals';
import { gpuCopyState, troubled } from './gpu_copies';

export type Level = 'bad' | 'warn' | 'note' | 'good';

export interface Finding {
  level: Exclude<Level, 'good'>;
  title: string;
  detail: string;
  /** The panel that says more. */
  panel: 'pool' | 'tenants' | 'pins' | 'nodes' | 'refusals';
}

export interface Verdict {
  level: Level;
  title: string;
  findings: Finding[];
}

/** Quarantine above this part of the pool hurts; below, it is told only in the pool's panel. */
const QUARANTINE_SHARE = 0.02;
const RANK: Level[] = ['bad', 'warn', 'note', 'good'];

export function judge(overview: Overview, refusedLastMinute: Record<string, number>, now: number): Verdict {
  const findings = [
    ...readiness(overview),
    ...overview.nodes.flatMap((node) => [
      ...nodeFindings(node, now),
      ...coldCache(node, now),
      ...gpuFindings(node),
      ...gatewayFindings(node),
    ]),
    ...refusals(refusedLastMinute),
    ...overLimit(overview),
    ...emptyPins(overview),
    ...degradedPins(overview),
    ...pinsWithoutGpuCopies(overview),
    ...unapplied(overview),
    ...quarantine(overview),
  ].sort((a, b) => RANK.indexOf(a.level) - RANK.indexOf(b.level));
  const level = findings[0]?.level ?? 'good';
  return { level, title: heading(findings), findings };
}

function heading(findings: Finding[]): string {
  const problems = findings.filter((f) => f.level === 'bad').length;
  const warnings = findings.filter((f) => f.level === 'warn').length;
  const parts = [
    ...(problems ? [plural(problems, 'problem')] : []),
    ...(warnings ? [plural(warnings, 'warning')] : []),
  ];
  if (parts.length) return parts.join(', ');
  return findings.length ? 'Well, with a note' : 'All is well';
}

function readiness(overview: Overview): Finding[] {
  if (overview.nodes.length === 0) {
    return [{ level: overview.ready ? 'warn' : 'bad', title: 'No node has joined', detail: 'Nothing is cached until one does.', panel: 'nodes' }];
  }
  const found: Finding[] = [];
  const explained = overview.nodes.some((node) => node.state !== 'in_sync' && node.state !== 'joining');
  if (!overview.ready && overview.nodes.every((node) => node.state === 'joining')) {
    found.push({ level: 'bad', title: 'No node is connected', detail: 'Nothing is cached until one is.', panel: 'nodes' });
  } else if (!overview.ready && !explained) {
    found.push({
      level: 'bad',
      title: 'Larder is not ready',
      detail: 'The management plane says at /healthz/fleet what it waits for.',
      panel: 'nodes',
    });
  }
  if (!overview.armed) {
    found.push({
      level: 'warn',
      title: 'Quotas are not enforced',
      detail: 'No snapshot of the quotas is in force yet: every tenant may use the whole pool.',
      panel: 'nodes',
    });
  }
  return found;
}

function nodeFindings(node: Node, now: number): Finding[] {
  switch (node.state) {
    case 'lost': {
      const silence = node.seen_at === 0 ? 'It was never heard.' : `Last heard ${duration(now - node.seen_at)} ago.`;
      return [{ level: 'bad', title: `Node ${node.name} is lost`, detail: silence, panel: 'nodes' }];
    }
    case 'nacked': {
      const fault = node.faults[0];
      const more = node.faults.length > 1 ? ` And ${plural(node.faults.length - 1, 'more fault')}.` : '';
      return [
        {
          level: 'bad',
          title: `Node ${node.name} refused what was pushed`,
          detail: fault ? `${fault.type} generation ${fault.generation}, ${fault.path}: ${fault.message}${more}` : 'It keeps its last good state.',
          panel: 'nodes',
        },
      ];
    }
    case 'behind': {
      const late = applied(node).filter((row) => !row.same);
      const detail = late.map((row) => `${row.type} ${row.observed ?? 'none'} of ${row.desired}`).join(', ');
      return [{ level: 'warn', title: `Node ${node.name} is behind`, detail: detail || 'It has not applied yet what was pushed last.', panel: 'nodes' }];
    }
    case 'joining':
      return [{ level: 'note', title: `Node ${node.name} is joining`, detail: 'It is waiting for its first snapshots.', panel: 'nodes' }];
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
      panel: 'nodes',
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
      panel: 'pins',
    },
  ];
}

function gpuFindings(node: Node): Finding[] {
  return troubled(node).map((pool) => ({
    level: 'warn',
    title: `GPU copies on a GPU of ${node.name} have a problem`,
    detail: `${pool.name} ${pool.device}: ${pool.problem}`,
    panel: 'nodes',
  }));
}

function gatewayFindings(node: Node): Finding[] {
  const problem = node.stats?.gateway?.problem;
  if (!problem) return [];
  return [{ level: 'bad', title: `New workers cannot use the gateway of ${node.name}`, detail: problem, panel: 'nodes' }];
}

function refusals(lastMinute: Record<string, number>): Finding[] {
  const codes = Object.entries(lastMinute).sort((a, b) => b[1] - a[1]);
  if (codes.length === 0) return [];
  const total = codes.reduce((sum, [, n]) => sum + n, 0);
  const detail = codes.map(([code, n]) => `${whole(n)} ${codeWords(code)}`).join(', ');
  return [{ level: 'warn', title: `${plural(total, 'block')} refused in the last minute`, detail, panel: 'refusals' }];
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
        detail: 'What engines still hold goes as soon as they let go.',
        panel: 'tenants',
      },
    ];
  }
  const names = over.slice(0, 3).map((tenant) => named(tenant.tenant));
  const rest = over.length > names.length ? ` and ${whole(over.length - names.length)} more` : '';
  return [
    { level: 'warn', title: `${plural(over.length, 'tenant')} are over their limits`, detail: names.join(', ') + rest, panel: 'tenants' },
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
      panel: 'pins',
    },
  ];
}

/** Nothing is lost without GPU copies; but somebody asked for them. */
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
      panel: 'pins',
    },
  ];
}

/** Records that do not hold everywhere, as far as no node's state says so already. */
function unapplied(overview: Overview): Finding[] {
  const told = new Set(overview.nodes.filter((node) => !['in_sync', 'lost'].includes(node.state)).map((node) => node.name));
  const open = (status: Pin['status']) => !status.applied && !Object.keys(status.nodes).some((name) => told.has(name));
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
      detail: pins.length > 1 ? names + rest : why || 'No living node that it is for has it.',
      panel: 'pins',
    });
  }
  if (overview.policy && overview.nodes.length > 0 && told.size === 0 && !overview.policy.status.applied) {
    found.push({ level: 'warn', title: 'The policy is not applied', detail: 'No living node has it in force.', panel: 'nodes' });
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
      detail: 'They come back when the engines that may still write there are proven gone.',
      panel: 'pool',
    },
  ];
}
