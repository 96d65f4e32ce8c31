/** Pushed snapshots and their answers. */

import type { Push } from '../../api/types';
import type { Level } from '../overview/findings';

const MARKS: Record<string, { tone: Level; label: string; title: string }> = {
  acked: { tone: 'good', label: 'applied', title: 'The node has applied the snapshot' },
  nacked: { tone: 'bad', label: 'nacked', title: 'The node refused the snapshot and keeps its last good state' },
  timed_out: { tone: 'warn', label: 'no answer', title: 'The node did not answer in time; the push is repeated' },
  refused: { tone: 'bad', label: 'refused', title: 'The node does not accept this manager' },
};

export function pushMark(push: Push): { tone: Level; label: string; title: string } {
  return MARKS[push.state] ?? { tone: 'note', label: push.state, title: '' };
}
