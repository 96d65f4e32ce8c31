/** Health of the cache in one line: how many findings there are, and the worst of them. */

import type { AlertList, Finding, Overview } from '../../api/types';
import { plural } from '../../format';
import { severityTone } from './alerts';
import { levelOf, type Level } from './findings';

export interface Verdict {
  level: Level;
  title: string;
  findings: Finding[];
}

const RANK: Level[] = ['bad', 'warn', 'note', 'good'];

/** Return the verdict. Firing alerts have their own panel and are not findings, but they raise the level. */
export function judge({ findings }: Overview, alerts: AlertList | null = null): Verdict {
  const levels = [...findings.map(levelOf), ...(alerts?.items ?? []).map((alert) => severityTone(alert.severity))];
  const level = RANK.find((each) => levels.includes(each)) ?? 'good';
  return { level, title: heading(findings, alerts?.total ?? 0), findings };
}

function heading(findings: Finding[], firing: number): string {
  const count = (level: Level): number => findings.reduce((sum, finding) => sum + (levelOf(finding) === level ? finding.count : 0), 0);
  const parts = [
    ...(firing ? [`${plural(firing, 'alert')} firing`] : []),
    ...(count('bad') ? [plural(count('bad'), 'problem')] : []),
    ...(count('warn') ? [plural(count('warn'), 'warning')] : []),
  ];
  if (parts.length) return parts.join(', ');
  return findings.length ? 'Well, with a note' : 'All is well';
}
