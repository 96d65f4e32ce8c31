/** Display of what the management plane found. It alone decides what is wrong. */

import type { Change, Finding } from '../../api/types';
import { ago, dateTime, duration, whole } from '../../format';
import type { PageName } from '../frame/pages';

export type Level = 'bad' | 'warn' | 'note' | 'good';

const LEVELS = { critical: 'bad', warning: 'warn', info: 'note' } as const;
/** Findings of one type that are shown one by one. */
const SHOWN = 3;

const PAGES: Record<Finding['subject']['kind'], PageName> = {
  fleet: 'nodes', node: 'nodes', tier: 'nodes', tenant: 'tenants', pin: 'pins', policy: 'policy', actor: 'changes',
};

export function levelOf({ severity }: Finding): Exclude<Level, 'good'> {
  return LEVELS[severity];
}

/** The page with details, and the one thing on it that the finding is about; empty for several. */
export function placeOf({ subject: { kind, name, node } }: Finding): { page: PageName; name: string } {
  const one = { tenant: name, pin: name, node, tier: node } as Partial<Record<typeof kind, string>>;
  return { page: PAGES[kind], name: one[kind] ?? '' };
}

/** Findings that need attention: no notes, also not of what ended, unless it needs attention even then. */
export function urgent(findings: readonly Finding[]): Finding[] {
  return findings.filter(({ severity }) => severity !== 'info');
}

/** The worst level of the findings of each page. */
export function levels(findings: readonly Finding[]): Partial<Record<PageName, Level>> {
  const worst: Partial<Record<PageName, Level>> = {};
  for (const finding of findings) {
    const { page } = placeOf(finding);
    if (worst[page] !== 'bad') worst[page] = levelOf(finding);
  }
  return worst;
}

/** When it is or was so, why, and the change before it. */
export function detailOf(finding: Finding, now: number): string {
  const { detail, likely_change: change } = finding;
  const when = whenOf(finding, now);
  const why = [when, detail].filter(Boolean).join(': ');
  return [why && `${why[0]?.toUpperCase()}${why.slice(1)}.`, change && before(change, now)].filter(Boolean).join(' ');
}

function whenOf({ since, ended_at }: Finding, now: number): string {
  if (ended_at === null) return since !== null && since <= now ? `for ${duration(now - since)}` : '';
  const end = ago(now - ended_at);
  return since === null || since >= ended_at ? end : `from ${ago(now - since)} to ${end}`;
}

function before(change: Change, now: number): string {
  return `The latest change before it: ${change.summary}${change.actor ? ` by ${change.actor}` : ''}, ${ago(Math.max(0, now - change.at))}.`;
}

/** At most three findings of a type; the rest is counted after them. */
export function listed(findings: readonly Finding[]): { finding: Finding; more: string }[] {
  const counts = new Map<string, number>();
  for (const { code, count } of findings) counts.set(code, (counts.get(code) ?? 0) + count);
  const seen = new Map<string, number>();
  return findings.flatMap((finding) => {
    const nth = (seen.get(finding.code) ?? 0) + 1;
    seen.set(finding.code, nth);
    const left = (counts.get(finding.code) ?? 0) - SHOWN;
    return nth > SHOWN ? [] : [{ finding, more: nth === SHOWN && left > 0 ? `And ${whole(left)} more like this.` : '' }];
  });
}

/** Findings about a node itself and its tiers, that last or need attention. */
export function of(findings: readonly Finding[], node: string): Finding[] {
  return findings.filter(({ subject, severity, ended_at }) => subject.node === node && !subject.tenant && (ended_at === null || severity !== 'info'));
}

/** The time at which a finding began, for a tooltip. */
export function sinceOf({ since }: Finding): string {
  return since === null ? '' : `since ${dateTime(since)}`;
}
