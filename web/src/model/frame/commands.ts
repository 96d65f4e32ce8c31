/** Commands that empty panels suggest, and those for users who may not change records here. */

import type { RecordType } from '../records/fields';

export const START_NODE = 'larder up';

export const SET_POLICY = 'larder policies set --algorithm lru --admission';

/** Command that changes a record; a record that does not exist yet is set. */
export function editCommand(type: RecordType, name: string, exists: boolean): string {
  return `larder ${type} ${exists ? 'edit' : 'set'} ${quoted(name)}${exists || type !== 'quotas' ? '' : ' --limit 4GiB'}`;
}

export function deleteCommand(type: RecordType, name: string): string {
  return `larder ${type} delete ${quoted(name)}`;
}

export function expelCommand(node: string, client: number, readmit: boolean): string {
  return `larder engines expel ${quoted(node)} ${client}${readmit ? ' --off' : ''}`;
}

/** Quote for a shell. */
function quoted(word: string): string {
  return /^[\w.:-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Python code that attaches a process to the data plane behind the socket. */
export function attachLine(socket: string): string {
  return [
    'from dataplane.client import Space, attach',
    `client = attach(${JSON.stringify(socket || 'ENGINE_SOCKET')}, [Space(model="my-model", block_bytes=2 << 20)], group="engine-0")`,
  ].join('\n');
}
