/** The lines that the empty states tell an operator to run. */

export const START_NODE = 'larder up';

export const SET_POLICY = 'larder policies set --algorithm lru --admission';

/** What pins a hot prefix, under its label, for as long as it is read at least daily. */
export function pinPrefix(label: string, tenant = ''): string {
  const whose = tenant && ` --tenant ${quoted(tenant)}`;
  return `larder pins set ${label} --prefix ${label}${whose} --ttl 24h --refresh-on-hit`;
}

/** For a shell. */
function quoted(word: string): string {
  return /^[\w.:-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** What attaches a Python process to the data plane behind the socket. */
export function attachLine(socket: string): string {
  return [
    'from dataplane.client import Space, attach',
    `client = attach("${socket || 'ENGINE_SOCKET'}", [Space(model="my-model", block_bytes=2 << 20)], group="engine-0")`,
  ].join('\n');
}
