/** The lines that the empty states tell an operator to run. */

export const START_NODE = 'larder up';

/** What attaches a Python process to the data plane behind the socket. */
export function attachLine(socket: string): string {
  return [
    'from dataplane.client import Space, attach',
    `client = attach("${socket || 'ENGINE_SOCKET'}", [Space(model="my-model", block_bytes=2 << 20)], group="engine-0")`,
  ].join('\n');
}
